"""The robustness dataset's folder: files read side by side, and written as they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rbtools.errors import RbError
from rbtools.formats import FORMATS, ConversionReport
from rbtools.papers.formats.jung2023 import JungResult
from rbtools.papers.formats.published_json import dumps
from rbtools.spaces import nasbench201
from tests.formats import reading

JUNG = FORMATS.build("jung2023")
EPSILONS = {"pgd@Linf": [0.1, 1.0, 8.0], "fgsm@Linf": [0.5, 255.0], "aa_square@Linf": [1.0]}
IDS = {
    str(index): {"nb201-string": nasbench201.strings()[index], "isomorph": str(nasbench201.classes()[index])}
    for index in (0, 9, 309, 1832)
}
META = {"ids": IDS, "epsilons": EPSILONS}
FILES: dict[str, Any] = {
    "clean_accuracy": {"0": 0.893, "9": 0.1, "309": 0.75},
    "pgd@Linf_accuracy": {"0": [0.88, 0.336, 0.0], "9": [0.1, 0.1, 0.1], "309": [0.7, 0.3, 0.1]},
    "fog_accuracy": {"0": [0.8, 0.7, 0.6, 0.5, 0.4], "9": [0.1] * 5, "309": [0.5] * 5},
}


def put(files: dict[str, Any], data: str = "cifar10", meta: Any = META) -> None:
    Path("robustness-data", data).mkdir(parents=True, exist_ok=True)
    if meta is not None:
        reading.put("robustness-data/meta.json", meta)
    for name, values in files.items():
        key, _, measure = name.rpartition("_")
        reading.put(f"robustness-data/{data}/{name}.json", {data: {key: {measure: values}}})


def read(told: ConversionReport | None = None) -> list[dict[str, Any]]:
    return reading.read("jung2023", "robustness-data", told)


def written(records: list[dict[str, Any]], told: ConversionReport | None = None) -> dict[str, Any]:
    return reading.values("jung2023", records, told)


def test_all_files_of_a_data_set_make_one_record_an_architecture() -> None:
    put(FILES)
    first, *others = read()
    assert [one["arch"]["index"] for one in (first, *others)] == [0, 9, 309]
    assert (first["dataset"], first["train"]["method"]) == ("cifar10", "erm")
    assert first["metrics"] == {
        "acc": 0.893,
        **{f"corrupt.fog.{n}": value for n, value in enumerate([0.8, 0.7, 0.6, 0.5, 0.4], 1)},
        **{"pgd40.0.1": 0.88, "pgd40.1": 0.336, "pgd40.8": 0.0},
    }
    entries = {entry["metric"]: entry for entry in first["evals"]}
    told = {"attack": "pgd", "steps": 40, "norm": "linf", "eps": 1 / 255, "rounding": 0.001, "value": 0.336}
    assert entries["pgd40.1"].items() >= told.items()
    assert (entries["corrupt.fog.3"]["corruption"], entries["corrupt.fog.3"]["severity"]) == ("fog", 3)


def test_a_round_trip_writes_the_same_files() -> None:
    put(FILES)
    put({"clean_accuracy": {"0": 0.5}}, "ImageNet16-120")
    found = written(read())
    meta = found.pop("meta.json")
    assert meta["epsilons"] == {"pgd@Linf": EPSILONS["pgd@Linf"]} and len(meta["ids"]) == 15_625
    assert {key: meta["ids"][key] for key in IDS} == IDS
    for path, content in found.items():
        assert content == json.loads(Path("robustness-data", path).read_text())
    assert len(found) == 4


matrix = st.lists(st.lists(st.floats(0, 1), min_size=2, max_size=2), min_size=2, max_size=2)
confidence = st.fixed_dictionaries(
    {"label": matrix, "argmax": matrix, "prediction": st.lists(st.floats(0, 1))}
)


counts = st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=2), min_size=2, max_size=2)


def measured(count: int) -> st.SearchStrategy[dict[str, Any]]:
    """The measures of a key with so many distances or severities; 0 for clean."""
    kinds = {"accuracy": st.floats(0, 1), "confidence": confidence, "cm": counts}
    listed = {
        name: st.lists(one, min_size=count, max_size=count) if count else one for name, one in kinds.items()
    }
    return st.fixed_dictionaries({}, optional=listed).filter(bool)


@settings(max_examples=30)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "clean": measured(0),
            "pgd@Linf": measured(3),
            "fgsm@Linf": measured(2),
            "snow": measured(5),
        },
    )
)
def test_accuracy_confidence_and_cm_come_back(values: dict[str, Any]) -> None:
    record = JUNG.record(JungResult("cifar10", "9", values, EPSILONS), ConversionReport(), "here")
    again = JUNG.unit(json.loads(json.dumps(record))).values
    assert json.loads(dumps(again)) == values


def test_details_stand_where_those_of_rb_attack_stand() -> None:
    put({"clean_accuracy": {"0": 0.5}, "clean_cm": {"0": [[3, 1], [0, 4]]}})
    put({"clean_confidence": {"0": {"prediction": [0.75, float("nan")]}}})
    (record,) = read()
    assert record["evals"][0]["detail"] == {
        "confusion": [[3, 1], [0, 4]],
        "confidence": {"prediction": [0.75, None]},
    }


def test_schemes_outside_the_distances_are_understood_too() -> None:
    schemes = {"prediction": [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]}
    put({"pgd@Linf_accuracy": {"0": [0.3, 0.2, 0.1]}, "pgd@Linf_confidence": {"0": schemes}})
    (record,) = read()
    assert record["evals"][2]["detail"] == {"confidence": {"prediction": [0.5, 0.6]}}


def test_a_file_that_is_cut_off_leaves_the_others() -> None:
    put({"clean_accuracy": {"0": 0.5, "9": 0.25}, "fog_accuracy": {"0": [0.5] * 5}})
    path = Path("robustness-data/cifar10/fog_accuracy.json")
    path.write_text(path.read_text()[:-4])
    told = ConversionReport()
    assert [record["metrics"] for record in read(told)] == [{"acc": 0.5}, {"acc": 0.25}]
    assert "it is not complete JSON" in next(told.errors())


def test_an_isomorphic_id_is_written_under_its_class() -> None:
    put({"clean_accuracy": {"1832": 0.5}})
    (record,) = read()
    assert (record["arch"]["index"], record["arch"]["class"]) == (1832, 309)
    assert written([record])["cifar10/clean_accuracy.json"] == {
        "cifar10": {"clean": {"accuracy": {"309": 0.5}}}
    }


def test_different_distances_are_brought_together_with_null() -> None:
    record = {"arch": {"space": "nasbench201", "index": 0}, "dataset": "cifar10", "metrics": {"pgd40.1": 0.5}}
    other = {**record, "arch": {"space": "nasbench201", "index": 9}, "metrics": {"pgd40.8": 0.25}}
    found = written([record, other])
    assert found["meta.json"]["epsilons"] == {"pgd@Linf": [1.0, 8.0]}
    assert found["cifar10/pgd@Linf_accuracy.json"]["cifar10"]["pgd@Linf"]["accuracy"] == {
        "0": [0.5, None],
        "9": [None, 0.25],
    }


def test_a_list_of_another_length_is_left_out_and_said() -> None:
    put({**FILES, "pgd@Linf_accuracy": {"0": [0.5], "9": 0.5, "309": [0.3, 0.2, 0.1]}})
    told = ConversionReport()
    first, _, third = read(told)
    assert "pgd40.1" not in first["metrics"] and third["metrics"]["pgd40.1"] == 0.2
    assert [line[:88] for line in told.errors()] == [
        "pgd@Linf: its accuracy is a list of 1, but 3 distances or severities are known; it is le",
        "pgd@Linf: its accuracy is 0.5, but 3 distances or severities are known; it is left out (",
    ]


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        (None, r"Cannot read robustness-data/meta\.json: No such file or directory\..*meta\.zip"),
        ({"epsilons": {"pgd@Linf": 8}}, r'Its "epsilons" contains 8 for pgd@Linf\. Expected a list\.'),
        ({"epsilons": {"pgd@Linf": ["x"]}}, r"found 'x' where a number was expected"),
    ],
)
def test_without_its_meta_file_nothing_can_be_read(meta: Any, message: str) -> None:
    put(FILES, meta=meta)
    with pytest.raises(RbError, match=message):
        read()


@pytest.mark.parametrize(
    ("files", "meta", "message"),
    [
        ({"new@Linf_accuracy": {"0": [0.5]}}, META, "new@Linf: meta.json contains no distances for it"),
        ({}, {**META, "ids": {"0": IDS["9"]}}, "gives an architecture a different number than NAS-Bench-201"),
    ],
)
def test_what_meta_does_not_explain_is_said(files: dict[str, Any], meta: Any, message: str) -> None:
    put({"clean_accuracy": {"0": 0.5}, **files}, meta=meta)
    told = ConversionReport()
    (record,) = read(told)
    assert record["metrics"] == {"acc": 0.5} and message in next(told.errors())
