"""Whatever stands in a published file or in a record: never a crash, and no other row is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import Result
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rbtools.formats import FORMATS
from rbtools.records import schema
from tests import runner
from tests.formats import reading
from tests.fuzz.strategies import changed, json_of

ROW: dict[str, Any] = {"dataset": "MNIST", "model": "SimpleCNN", "method": "PGD", "acc": 90.5}
ROW |= {"ar": {"PGD20": 50.0, "AA": 40.5}, "pr": {"0.03": 99.0}, "probacc": {"0.05": 90.0}}
ROW |= {"ge_ar": {"PGD20": 1.0}, "ge_pr": {"0.08": 1.0}, "time_s_per_ep": 3}
INFO = {"dataset": "cifar10", "architecture": "ResNet-18", "eps": "8/255", "clean_acc": "90.1"}
INFO["autoattack_acc"] = "50"
SAMPLES: dict[str, dict[str, Any]] = {
    "prbench": {"f.json": [ROW, ROW]},
    "robustbench": {
        "f/cifar10/Linf/A.json": INFO,
        "f/cifar10/corruptions/B.json": {**INFO, "corruptions_acc": "1"},
    },
    "jung2023": {
        "f/meta.json": {
            "ids": {"0": {"nb201-string": "x", "isomorph": "0"}},
            "epsilons": {"pgd@Linf": [1.0, 8]},
        },
        "f/cifar10/clean_accuracy.json": {"cifar10": {"clean": {"accuracy": {"0": 0.5, "9": 0.5}}}},
        "f/cifar10/pgd@Linf_accuracy.json": {
            "cifar10": {"pgd@Linf": {"accuracy": {"0": [0.5, 0.1], "9": [0, 1]}}}
        },
        "f/cifar10/pgd@Linf_confidence.json": {
            "cifar10": {"pgd@Linf": {"confidence": {"0": [{"label": [[1]]}, {"label": [[0]]}]}}}
        },
    },
    "nasrobbench201": {"f.json": {"cifar10": {"0": {"val_acc": {"1": 0.5, "threeseed": 0.5}, "aa": 0.5}}}},
}

FIELDS = [field.name for field in (*schema.RECORD, *schema.TRAIN, *schema.EVALS)]
ENTRY = {"metric": "pgd40.1", "value": 0.5, "published": "0.5", "unit": "percent", "threeseed": 0.5}
TRAIN = {"method": "pgd", "seed": 0, "config": {"eps": 0.1}}
RECORD = runner.model("nb201-5", ENTRY, space="nasbench201", dataset="cifar10", train=TRAIN)
RECORD["metrics"] |= {"acc": 0.5, "aa.8": 0.25, "corrupt.fog.1": 0.5, "pr.uniform.0.1": 0.5, "ge.acc": 0.1}
# A failure is reported without shrinking, which takes minutes.
QUICKLY = settings(max_examples=40, phases=[Phase.generate])


def put(files: dict[str, Any], cut: int | None = None) -> str:
    for name, content in files.items():
        reading.put(name, content if cut is None else json.dumps(content)[:-cut])
    return next(iter(files)).split("/")[0]


def run(*arguments: str, text: str | bytes = "") -> Result:
    result = runner.run("convert", arguments, text)
    assert "Traceback" not in result.stderr and "bug in rbtools" not in result.stderr, result.stderr
    assert result.exit_code in (0, 1, 2, 3)
    return result


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_themselves_are_fine(name: str) -> None:
    result = run(name, put(SAMPLES[name]))
    assert result.stdout and "error" not in result.stdout and (result.exit_code == 0 or name == "jung2023")


@pytest.mark.parametrize("name", SAMPLES)
@QUICKLY
@given(data=st.data())
@pytest.mark.slow
def test_odd_content_is_an_error_of_one_line_or_none(name: str, data: st.DataObject) -> None:
    files = dict(SAMPLES[name])
    which = data.draw(st.sampled_from(list(files)))
    files[which] = data.draw(changed(files[which], FIELDS))
    result = run(name, put(files))
    for line in filter(None, result.stdout.split("\n")):
        assert {"arch", "error"} & json.loads(line).keys()
    for line in filter(None, result.stderr.split("\n")):
        assert line.startswith("rb-convert: ") and line.endswith((".", "?"))
    again = run(name, "--write", "again", text=result.stdout)
    assert again.exit_code in ((0, 1) if result.stdout else (3,))


@pytest.mark.parametrize("name", SAMPLES)
def test_files_cut_anywhere_are_said(name: str) -> None:
    for cut in range(1, 40, 3):
        result = run(name, put(SAMPLES[name], cut))
        assert result.exit_code and result.stderr.startswith("rb-convert: error: ")


@pytest.mark.parametrize("name", FORMATS)
@QUICKLY
@given(found=st.lists(changed(RECORD, FIELDS).flatmap(json_of), max_size=3))
@pytest.mark.slow
def test_odd_records_are_an_error_of_one_line_or_none(name: str, found: list[bytes]) -> None:
    assert run(name, "--write", "out", text=b"".join(text + b"\n" for text in found)).stdout == ""
