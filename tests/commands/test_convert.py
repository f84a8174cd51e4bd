"""rb-convert: files in, records out, and the other way; what goes wrong loses nothing else."""

from __future__ import annotations

import csv
import io
import json
import os
from functools import partial
from pathlib import Path

import pytest

from rbtools import datasets
from rbtools.records import answers
from tests import runner
from tests.runner import Record, one, records

ROW = {"dataset": "CIFAR-10", "model": "ResNet-18", "method": "PGD", "acc": 83.83, "ar": {"AA": 46.34}}

run = partial(runner.run, "convert")


def test_standard_input_is_read_where_no_file_is_named() -> None:
    text = json.dumps([ROW, {**ROW, "method": "TRADES", "acc": 83.34}])
    Path("board.json").write_text(text)
    assert run("prbench", text).stdout == run("prbench board.json").stdout != ""


def test_a_dash_writes_to_standard_output() -> None:
    metrics = {"acc": 0.8383, "aa.8": 0.4634}
    record = runner.model("resnet18", dataset="cifar10", train={"method": "pgd"}, metrics=metrics)
    result = run("prbench --write -", [record])
    assert json.loads(result.stdout) == [ROW]


def test_a_row_that_is_none_becomes_an_error_record_between_the_others() -> None:
    Path("board.json").write_text(json.dumps([ROW, {"model": "x"}, 7, ROW | {"method": "MART"}]))
    result = run("prbench board.json")
    assert result.exit_code == 1
    first, second, third, last = records(result)
    assert "error" not in first and "error" not in last
    assert second["error"]["message"].startswith('board.json: row 2: The row\'s "dataset" is missing')
    assert second["error"]["text"] == '{"model":"x"}' and third["error"]["text"] == "7"
    assert result.stderr.count("\n") == 2 and result.stderr.count("rb-convert: error: board.json: row ") == 2


def test_half_of_a_surrogate_pair_is_written_as_its_escape() -> None:
    folder = Path("cifar10/Linf")
    folder.mkdir(parents=True)
    (folder / "X.json").write_text(json.dumps({"dataset": "cifar10", "clean_acc": "90", "eps": "\ud800"}))
    (failed,) = records(run(f"robustbench {folder}"))
    assert "found '\\ud800'" in failed["error"]["message"]
    Path(os.fsdecode(b"b\xff.json")).write_text("{")
    (failed,) = records(run("prbench " + os.fsdecode(b"b\xff.json")))
    assert failed["error"]["message"].startswith("b\\udcff.json is not complete JSON")


def test_no_records_write_no_file() -> None:
    Path("failed.jsonl").write_text('{"arch":{},"error":{"tool":"rb-train","message":"no luck"}}\n')
    result = run("prbench --write out.json failed.jsonl")
    assert result.exit_code == 1
    assert "there is nothing to write: out.json was not written." in result.stderr
    assert not Path("out.json").exists()


COLUMNS = ["model", "checkpoint", "example", "class", "metric", "correct"]


@pytest.fixture
def attacked(trained: dict[str, Record]) -> Record:
    words = "--n 30 --device cpu --threads 1"
    clean = runner.run("attack", f"fgsm --eps 4 --detail {words}", [trained["erm"]])
    return one(runner.run("corrupt", f"fog --severity 2 {words}", clean.stdout))


def table(*given: Record) -> list[dict[str, str]]:
    result = runner.run("convert", "per-image --write -", given)
    assert (result.exit_code, result.stderr) == (0, "")
    rows = csv.DictReader(io.StringIO(result.stdout))
    assert rows.fieldnames == COLUMNS
    return list(rows)


def test_a_row_says_what_the_model_did_on_an_image(attacked: Record) -> None:
    rows = table(attacked)
    labels = datasets.load("digits", "test").labels
    in_order = labels[datasets.subset(labels, 30, seed=0)].tolist()
    assert {row["model"] for row in rows} == {"small erm seed 0"}
    assert {row["checkpoint"] for row in rows} == {attacked["checkpoint"]}
    for entry in attacked["evals"]:
        own = [row for row in rows if row["metric"] == entry["metric"]]
        bits = answers.of(entry)
        if bits is None:
            assert own == []
            continue
        assert [row["correct"] for row in own] == [str(int(bit)) for bit in bits.right]
        assert [int(row["example"]) for row in own] == list(range(30))
        assert [int(row["class"]) for row in own] == in_order
    assert {row["metric"] for row in rows} == {"acc", "fgsm.4", "corrupt.fog.2"}


def test_unknown_classes_are_empty_and_formulas_are_texts(attacked: Record) -> None:
    del attacked["examples"]
    attacked["arch"]["name"] = "=1+1"
    rows = table(attacked)
    assert {row["class"] for row in rows} == {""} and rows[0]["model"] == "'=1+1 erm seed 0"


def test_damaged_bits_cost_the_rows_of_their_entry_only(attacked: Record) -> None:
    runner.entry(attacked, "fgsm.4")["answers"]["bits"] = "!"
    result = runner.run("convert", "per-image --write table.csv", [attacked])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1 and "The answers of fgsm.4 are damaged" in result.stderr
    rows = list(csv.DictReader(Path("table.csv").read_text().splitlines()))
    assert {row["metric"] for row in rows} == {"acc", "corrupt.fog.2"}
