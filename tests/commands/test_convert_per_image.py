"""rb-convert per-image: a row for each image of each metric, as CSV and parquet."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rbtools import datasets
from rbtools.records import answers
from rbtools.store import Store
from tests import runner

Record = dict[str, Any]
COLUMNS = ["model", "checkpoint", "example", "class", "metric", "correct", "confidence"]


@pytest.fixture
def attacked(trained: dict[str, Record]) -> Record:
    words = "--n 30 --device cpu --threads 1 --per-image"
    clean = runner.run("attack", f"fgsm --eps 4 --detail {words}", [trained["erm"]])
    result = runner.run("corrupt", f"fog --severity 2 {words}", clean.stdout)
    assert result.exit_code == 0, result.stderr
    record: Record = json.loads(result.stdout)
    return record


def table(*given: Record, words: str = "") -> list[dict[str, str]]:
    result = runner.run("convert", f"per-image --write - {words}", given)
    assert (result.exit_code, result.stderr) == (0, "")
    rows = csv.DictReader(io.StringIO(result.stdout))
    assert rows.fieldnames == COLUMNS
    return list(rows)


def test_a_row_says_what_the_model_did_on_an_image(attacked: Record) -> None:
    rows = table(attacked)
    images = datasets.load("digits", "test")
    assert {row["model"] for row in rows} == {"small erm seed 0"}
    assert {row["checkpoint"] for row in rows} == {attacked["checkpoint"]}
    for entry in attacked["evals"]:
        own = [row for row in rows if row["metric"] == entry["metric"]]
        bits = answers.of(entry)
        if bits is None:
            assert own == []
            continue
        assert [row["correct"] for row in own] == [str(int(bit)) for bit in bits.right]
        places = [int(row["example"]) for row in own]
        assert len(set(places)) == 30 and places != list(range(30))
        assert [int(row["class"]) for row in own] == images.labels[places].tolist()
    assert {row["metric"] for row in rows} == {"acc", "fgsm.4", "corrupt.fog.2"}


def test_confidences_are_the_softmax_of_the_logits_in_the_store(attacked: Record) -> None:
    (listed,) = [
        json.loads(line)
        for line in runner.run("store", "ls --kind evaluation").stdout.splitlines()
        if "fgsm.4" in json.loads(line)["metrics"]
    ]
    data = Store("rb-store").outcomes(listed["stored"]["outcomes"])
    assert data is not None
    logits = np.load(io.BytesIO(data[data.index(b"\n") + 1 :]))
    exponentials = np.exp(logits[:, 1:].astype(float))
    expected = exponentials[np.arange(30), logits[:, 0].astype(int)] / exponentials.sum(1)
    found = [row for row in table(attacked) if row["metric"] == "fgsm.4"]
    np.testing.assert_allclose([float(row["confidence"]) for row in found], expected, rtol=1e-4)
    assert {row["confidence"] for row in table(attacked) if row["metric"] == "corrupt.fog.2"} == {""}
    assert {row["confidence"] for row in table(attacked, words="--store other")} == {""}


def test_parquet_has_the_same_rows(attacked: Record) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    result = runner.run("convert", "per-image --write table.parquet", [attacked])
    assert (result.exit_code, result.stderr) == (0, "")
    read = parquet.read_table("table.parquet")
    assert read.column_names == COLUMNS
    for row, text in zip(read.to_pylist(), table(attacked), strict=True):
        share = text.pop("confidence")
        assert row.pop("confidence") == (pytest.approx(float(share), rel=1e-5) if share else None)
        assert {**row, "correct": int(row["correct"])} == {
            name: int(value) if name in ("example", "class", "correct") else value
            for name, value in text.items()
        }


def test_records_without_bits_are_looked_up_and_formulas_are_texts(attacked: Record) -> None:
    bare = {**attacked, "evals": [{k: v for k, v in e.items() if k != "answers"} for e in attacked["evals"]]}
    del bare["examples"]
    assert table(bare) == table(attacked)
    named = {**attacked, "arch": {**attacked["arch"], "name": "=1+1"}}
    assert table(named)[0]["model"] == "'=1+1 erm seed 0"


def test_without_the_data_set_examples_are_places_in_the_list(attacked: Record) -> None:
    elsewhere = {**attacked, "dataset": "cifar10", "checkpoint": "sha256:0"}
    result = runner.run("convert", "per-image --write table.csv", [elsewhere])
    assert result.exit_code == 0
    assert "images of cifar10 are numbered by their places in the evaluation's list: " in result.stderr
    rows = list(csv.DictReader(Path("table.csv").read_text().splitlines()))
    assert [int(row["example"]) for row in rows] == [*range(30)] * 3
    assert [row["class"] for row in rows] == [row["class"] for row in table(attacked)]


def test_damaged_bits_cost_the_rows_of_their_entry_only(attacked: Record) -> None:
    entry = next(one for one in attacked["evals"] if one["metric"] == "fgsm.4")
    entry["answers"]["bits"] = "!"
    result = runner.run("convert", "per-image --write table.csv", [attacked])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1 and "The answers of fgsm.4 are damaged" in result.stderr
    rows = list(csv.DictReader(Path("table.csv").read_text().splitlines()))
    assert {row["metric"] for row in rows} == {"acc", "corrupt.fog.2"}


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("table.txt", "table.txt ends in neither .csv nor .parquet"),
        ("nowhere/table.csv", "nowhere does not exist"),
    ],
)
def test_a_target_that_is_no_table_is_refused(target: str, said: str, attacked: Record) -> None:
    result = runner.run("convert", f"per-image --write {target}", [attacked])
    assert result.exit_code == 2 and said in result.stderr
