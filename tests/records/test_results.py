"""Results in a record: one entry a metric, no silent change of protocol, a bit an image, their fields."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from rbtools.errors import RbError
from rbtools.records import answers, checksums, results

ENTRY: dict[str, Any] = {"tool": "rb-attack", "metric": "pgd20.8", "eps": 8 / 255, "steps": 20, "n": 100}
ENTRY |= {"attack": "pgd", "split": "test", "value": 0.5, "ci95": [0.4, 0.6], "seconds": 1.0, "device": "cpu"}
RECORD: dict[str, Any] = {"arch": {"name": "x"}, "mine": [1]}


def test_a_result_stands_in_metrics_and_evals_and_the_input_is_left_alone() -> None:
    before = copy.deepcopy(RECORD)
    record = results.add(RECORD, ENTRY)
    sums = {"pgd20.8": checksums.of(ENTRY)}
    assert record == {**RECORD, "metrics": {"pgd20.8": 0.5}, "evals": [ENTRY], "checksums": sums}
    assert before == RECORD
    again = copy.deepcopy(record)
    results.add(record, {**ENTRY, "metric": "acc"})
    assert record == again
    undescribed = {**RECORD, "metrics": {"pgd20.8": 0.9, "acc": 1.0}}
    assert results.add(undescribed, ENTRY)["metrics"] == {"acc": 1.0, "pgd20.8": 0.5}
    record = results.add(record, {**ENTRY, "value": None, "reason": "no image stands"})
    assert record["metrics"] == {} and record["evals"][0]["reason"] == "no image stands"


@pytest.mark.parametrize("asked", ["steps", "eps", "n", "split", "seed", "norm", "dataset", "precision"])
def test_another_protocol_is_an_error_that_shows_both(asked: str) -> None:
    record = results.add(RECORD, {**ENTRY, asked: 20})
    with pytest.raises(RbError) as wrong:
        results.add(record, {**ENTRY, asked: 40})
    assert f"already has 'pgd20.8', measured differently: {asked} 20 there and 40 here." in str(wrong.value)
    assert "Keep both with --as NAME, or overwrite with --force." in str(wrong.value)
    with pytest.raises(RbError, match=f"{asked} 20 there and absent here"):
        results.add(record, {name: value for name, value in ENTRY.items() if name != asked})
    assert results.add(record, {**ENTRY, asked: 40}, replace=True)["evals"] == [{**ENTRY, asked: 40}]


def test_an_implicit_result_on_more_examples_takes_the_place_of_the_smaller_one() -> None:
    record = results.add(RECORD, {**ENTRY, "metric": "acc", "n": 50, "value": 0.5})
    assert results.add_implicit(record, {**ENTRY, "metric": "acc", "n": 10}) is record
    assert results.add_implicit(record, {**ENTRY, "metric": "other"})["metrics"].keys() == {"acc", "other"}
    record = results.add_implicit(record, {**ENTRY, "metric": "acc", "n": 355, "value": 0.75})
    assert record["metrics"]["acc"] == 0.75
    assert [entry["n"] for entry in record["evals"] if entry["metric"] == "acc"] == [355]


def test_new_weights_forget_what_was_measured_on_the_old_ones() -> None:
    ntk, note = {"metric": "ntk", "value": 3.0}, {"note": "no metric at all"}
    gap = {"metric": "ge.acc", "split": "train-test", "value": 0.1}
    seconds, score = ({"metric": name, "value": 0.5} for name in ("seconds_per_epoch", "score"))
    record = RECORD
    for entry in (ENTRY, ntk, gap, seconds, {**score, "tool": "rb-score"}):
        record = results.add(record, entry)
    kept = results.forget_evaluations({**record, "evals": [*record["evals"], note]})
    assert kept["metrics"] == {"ntk": 3.0} and kept["evals"] == [ntk, note]
    assert results.forget_evaluations(RECORD) is RECORD


def entry(right: np.ndarray, **more: Any) -> dict[str, Any]:
    value = {"n": len(right), "value": float(right.mean())}
    return {"metric": "pgd20.8", **value, answers.FIELD: answers.packed(right, "abc"), **more}


@pytest.mark.parametrize("images", [1, 7, 8, 9, 1000])
def test_what_is_written_is_read(images: int) -> None:
    right = np.random.default_rng(images).random(images) < 0.7
    read = answers.of(entry(right))
    assert read is not None and read.examples == "abc" and np.array_equal(read.right, right)
    assert answers.of({"metric": "acc", "value": 1.0}) is None
    assert len(str(answers.packed(np.ones(10_000, bool), "0" * 16))) < 1800


@pytest.mark.parametrize(
    "damage",
    [
        *({"bits": bits} for bits in ("!!", "AAAA", None, "/w==")),  # the last: eight images, and not six
        *({"images": images} for images in (9, 0, 1 << 40, True)),
        {"examples": None},
    ],
)
def test_damaged_answers_name_their_metric(damage: dict[str, Any]) -> None:
    whole = entry(np.arange(8) < 6)
    with pytest.raises(RbError, match=r"The answers of pgd20\.8 are damaged: .+ Evaluate again"):
        answers.of({**whole, answers.FIELD: {**whole[answers.FIELD], **damage}})
    with pytest.raises(RbError, match="damaged"):
        answers.of({**whole, "value": 0.5})
    with pytest.raises(RbError, match="damaged"):
        answers.of({**whole, answers.FIELD: "bits"})


def test_classes_of_images_are_read_for_the_first_of_a_list() -> None:
    labels = np.arange(600) % 300
    packed = answers.packed_labels(labels)
    record = answers.with_labels({"arch": {}}, "abc", packed)
    few = answers.of(entry(np.ones(5, bool)))
    assert few is not None and answers.labels_of(record, few).tolist() == [0, 1, 2, 3, 4]
    shorter = answers.with_labels(record, "abc", answers.packed_labels(labels[:10]))
    assert shorter == record  # the longer list stays
    for lacking in ({}, {answers.LABELS: "text"}):
        with pytest.raises(RbError, match="lacks the classes"):
            answers.labels_of(lacking, few)
        assert answers.with_labels(lacking, "abc", packed) == {answers.LABELS: record[answers.LABELS]}
    for field in ({"labels": "AAAA"}, "text", answers.packed_labels(labels[:3])):
        with pytest.raises(RbError, match=r"damaged\. Expected 5 labels"):
            answers.labels_of({answers.LABELS: {"abc": field}}, few)
