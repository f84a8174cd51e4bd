"""NAS-RobBench-201's file: seeds as records, their means beside them, classes for isomorphic ids."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbtools.errors import RbError
from rbtools.formats import FORMATS, ConversionReport
from tests.formats import reading

# The numbers of the readme for architecture 1000.
FILE: dict[str, Any] = {
    "cifar10": {
        "1000": {
            "val_acc": {"0": 0.75, "1": 0.77, "2": 0.79, "threeseed": 0.77},
            "val_fgsm_3.0_acc": {"1": 0.6729999780654907},
            "val_pgd_3.0_acc": {"1": 0.6680999994277954},
        }
    }
}


def units(found: Any, **options: Any) -> list[Any]:
    return reading.units("nasrobbench201", reading.put("all.json", found), **options)


def read(found: Any, **options: Any) -> list[dict[str, Any]]:
    return reading.read("nasrobbench201", reading.put("all.json", found), **options)


def written(records: list[dict[str, Any]], told: ConversionReport | None = None) -> Any:
    return reading.values("nasrobbench201", records, told)[""]


def test_every_seed_is_a_record() -> None:
    first, second, third = read(FILE)
    assert [one["train"]["seed"] for one in (first, second, third)] == [0, 1, 2]
    assert second["train"] == {"method": "pgd", "preset": "nasrobbench201", "seed": 1}
    assert second["arch"]["name"] == "nb201-1000" and second["dataset"] == "cifar10"
    assert second["metrics"] == {"acc": 0.77, "fgsm.3": 0.6729999780654907, "pgd20.3": 0.6680999994277954}
    entry = second["evals"][2]
    assert (entry["eps"], entry["steps"], entry["attack"]) == (3 / 255, 20, "pgd")
    assert first["evals"][0]["threeseed"] == 0.77


def test_the_mean_or_one_seed_can_be_asked_for() -> None:
    (mean,) = read(FILE, seeds="mean")
    assert mean["metrics"] == {"acc": 0.77} and mean["train"]["seeds"] == 3
    (one,) = read(FILE, seeds="1")
    assert one["train"]["seed"] == 1


def test_an_isomorphic_id_has_its_class_and_is_written_under_it() -> None:
    for index, class_ in (("1832", 309), ("3365", 991), ("11472", 2528)):
        (record,) = read({"cifar10": {index: {"val_acc": {"1": 0.5}}}})
        assert (record["arch"]["index"], record["arch"]["class"]) == (int(index), class_)
        assert written([record]) == {"cifar10": {str(class_): {"val_acc": {"1": 0.5}}}}


def test_counts_are_those_of_the_data_set() -> None:
    found = {name: {"13714": {"val_acc": {"1": 0.5}}} for name in ("cifar10", "ImageNet16-120", "imagenet")}
    assert [one["arch"]["params"] for one in read(found)] == [1_073_466, 1_080_616, 1_080_616]
    assert [one["dataset"] for one in read(found)] == ["cifar10", "imagenet16-120", "imagenet16-120"]
    assert written(read(found)) == found


fractions = st.floats(0, 1)
seeded = st.dictionaries(st.sampled_from(["0", "1", "2", "threeseed"]), fractions, min_size=1)
results = st.dictionaries(
    st.sampled_from(
        "val_acc val_pgd_3.0_acc val_pgd_0.5_acc val_fgsm_8.0_acc val_fgsm_8_acc train_acc odd".split()
    ),
    seeded,
    min_size=1,
).filter(lambda found: not {"val_fgsm_8.0_acc", "val_fgsm_8_acc"} <= found.keys())


@given(
    st.dictionaries(
        st.sampled_from(["cifar10", "CIFAR100", "imagenet"]),
        st.dictionaries(st.sampled_from(["0", "7", "13714"]), results, min_size=1),
        min_size=1,
    ),
    st.booleans(),
)
@pytest.mark.slow
def test_a_round_trip_loses_nothing(found: dict[str, Any], lone: bool) -> None:
    if lone:
        next(iter(next(iter(found.values())).values()))["autoattack"] = 0.25
    assert written(read(found)) == found


def test_of_two_records_for_one_place_the_last_one_is_written() -> None:
    told = ConversionReport()
    record = read(FILE, seeds="1")[0]
    again = {**record, "metrics": {"acc": 0.5}}
    assert written([record, again], told)["cifar10"]["1000"]["val_acc"]["1"] == 0.5
    assert "the last one is written" in next(told.remarks())


@pytest.mark.parametrize("index", ["99999", "-1", "1.5", "x", "²"])
def test_an_unknown_id_is_refused_and_the_others_are_read(index: str) -> None:
    found = units({"cifar10": {index: {"val_acc": {"1": 0.5}}, "5": {"val_acc": {"1": 0.5}}}})
    chosen = FORMATS.build("nasrobbench201")
    with pytest.raises(RbError, match=r"index|architecture id"):
        chosen.record(found[0].content, ConversionReport(), "")
    assert chosen.record(found[1].content, ConversionReport(), "")["metrics"] == {"acc": 0.5}
