"""NARes' lines: trainings as records, histories and what else there is carried along."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbtools.errors import RbError
from rbtools.formats import FORMATS, Bad, ConversionReport, Published
from tests.formats import reading

NARES = FORMATS.build("nares")
ARCH = {"D1": 5, "W1": 10, "D2": 7, "W2": 8, "D3": 4, "W3": 16}
LINE: dict[str, Any] = {
    "arch_id": 2333,
    "arch": ARCH,
    "MACs": 5_000_000_000,
    "Params": 40_000_000,
    "train": [
        {
            "seed": 0,
            "gpu_type": "V100",
            "timestamp": "2022-01-02",
            "best_epoch": 1,
            "train_loss": [2.0, 1.5],
            "val_acc": [50.0, 75.5],
            "pgd": [30.0, 38.25],
            "cw": [29.0, 37.5],
        }
    ],
    "test_best": [
        {
            "test_clean_acc": 88.57,
            "test_loss": 0.61,
            "Linf_fgsm_acc": 62.68,
            "Linf_pgd_acc": 57.39,
            "Linf_pgd_stable": 60.0,
            "Linf_pgd_lip": 1.25,
            "Linf_cw_acc": 56.17,
            "Linf_aa_acc": 53.48,
            "corruptions": {"fog": {str(n): {"acc": 80.0 - n, "loss": 0.5 + n} for n in range(1, 6)}},
        }
    ],
}


def units(*lines: Any) -> list[Any]:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    return reading.units("nares", reading.put("cifar10.jsonl", "".join(text + "\n" for text in texts)))


def read(line: Any) -> list[dict[str, Any]]:
    return reading.read("nares", reading.put("cifar10.jsonl", json.dumps(line) + "\n"))


def written(records: list[dict[str, Any]], told: ConversionReport | None = None) -> list[Any]:
    return [json.loads(line) for line in reading.texts("nares", records, told)[""].splitlines()]


def test_a_training_is_a_record() -> None:
    (record,) = read(LINE)
    assert record["arch"] == {
        "space": "nares",
        "name": "nares-5x10-7x8-4x16",
        "index": 2333,
        "depth": [5, 7, 4],
        "width": [10, 8, 16],
        "params": 40_000_000,
        "macs": 5_000_000_000,
    }
    assert (record["train"]["method"], record["train"]["seed"], record["train"]["epochs"]) == ("pgd", 0, 2)
    metrics = dict(record["metrics"])
    assert metrics.pop("corrupt.fog.3") == 0.77 and metrics.pop("corrupt.fog.3.loss") == 3.5
    assert {name: value for name, value in metrics.items() if not name.startswith("corrupt")} == {
        "acc": 0.8857,
        "fgsm.8": 0.6268,
        "pgd20.8": 0.5739,
        "cw40.8": 0.5617,
        "aa.8": 0.5348,
        "pgd20.8.stable": 0.6,
        "loss": 0.61,
        "pgd20.8.lip": 1.25,
        "val.acc": 0.755,
        "val.pgd20.8": 0.3825,
        "val.cw40.8": 0.375,
    }
    entry = next(entry for entry in record["evals"] if entry["metric"] == "val.pgd20.8")
    assert (entry["split"], entry["epoch"], entry["steps"]) == ("val", 1, 20)


def test_several_trainings_are_several_records_and_one_line_again() -> None:
    line = copy.deepcopy(LINE)
    line["train"].append({**line["train"][0], "seed": 1})
    line["test_best"].append({**line["test_best"][0], "Linf_aa_acc": 50.0})
    assert [record["metrics"]["aa.8"] for record in read(line)] == [0.5348, 0.5]
    assert written(read(line)) == [line]


percents = st.integers(200, 10_000).map(lambda hundredths: hundredths / 100)
tests = st.fixed_dictionaries(
    {"test_clean_acc": percents},
    optional={
        "test_loss": st.floats(0, 10),
        "Linf_fgsm_acc": percents,
        "Linf_fgsm_stable": percents,
        "Linf_pgd_lip": st.floats(0, 100),
        "Linf_aa_acc": percents,
        "note": st.text(max_size=3),
        "corruptions": st.dictionaries(
            st.sampled_from(["fog", "snow"]),
            st.dictionaries(
                st.sampled_from(["1", "5", "9"]),
                st.fixed_dictionaries(
                    {"acc": percents}, optional={"loss": st.floats(0, 9), "x": st.integers()}
                ),
                min_size=1,
            ),
            min_size=1,
        ),
    },
)
trainings = st.fixed_dictionaries(
    {"seed": st.integers(0, 9), "best_epoch": st.integers(0, 3), "val_acc": st.lists(percents, max_size=3)},
    optional={"gpu_type": st.text(max_size=3), "train_loss": st.lists(st.floats(0, 9))},
)


@given(tests, trainings, st.booleans())
def test_a_round_trip_loses_nothing(test: dict[str, Any], training: dict[str, Any], millions: bool) -> None:
    line = {**LINE, "train": [training], "test_best": [test]}
    if millions:
        line |= {"MACs": 5000.5, "Params": 40.5}
    assert written(read(line)) == [line]


def test_a_line_that_is_none_leaves_the_others() -> None:
    first, cut, none, last = units(
        LINE, json.dumps(LINE)[:100], {"arch": ARCH, "train": [], "test_best": []}, LINE
    )
    assert isinstance(cut, Bad) and cut.where == "cifar10.jsonl: line 2"
    assert cut.problem == "It is cut off: it ends in the middle."
    assert isinstance(none, Bad) and none.problem.startswith(
        'It has no "train" and "test_best" of one length'
    )
    assert not isinstance(first, Bad) and not isinstance(last, Bad)


def test_fractions_are_noticed() -> None:
    line = {**LINE, "train": [{"seed": 0}], "test_best": [{"test_clean_acc": 0.8857, "Linf_aa_acc": 0.5348}]}
    with pytest.raises(RbError, match=r"look like fractions.*--scale fraction"):
        read(line)


@pytest.mark.parametrize("arch", [None, {"D1": 5}, {**ARCH, "D1": "five"}])
def test_an_architecture_that_is_none_is_refused(arch: Any) -> None:
    with pytest.raises(RbError, match='Its "arch"'):
        read({**LINE, "arch": arch})


def test_a_record_of_another_kind_is_refused() -> None:
    with pytest.raises(RbError, match=r"Expected a record with the lists arch\.depth and arch\.width"):
        NARES.unit({"arch": {"space": "zoo", "name": "resnet18"}})


def test_of_two_records_for_one_training_the_last_one_is_written() -> None:
    told = ConversionReport()
    record = read(LINE)[0]
    again = {**record, "metrics": {"acc": 0.5}, "evals": []}
    (line,) = written([record, again], told)
    assert line["test_best"][0]["test_clean_acc"] == 50.0 and "the last one is written" in next(
        told.remarks()
    )


def test_a_binary_file_is_one_bad_unit(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"PK\x03\x04\x00\n" * 99)
    (bad,) = NARES.units(Published(path, "model.pt"), ConversionReport())
    assert isinstance(bad, Bad) and bad.problem == "It is binary data, not JSON, and the rest is not read."
