"""Results in a record: one entry a metric, and no silent change of protocol."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rbtools.errors import RbError
from rbtools.records import checksums, results

ENTRY: dict[str, Any] = {
    "tool": "rb-attack",
    "metric": "pgd20.8",
    "attack": "pgd",
    "eps": 8 / 255,
    "steps": 20,
}
ENTRY |= {"split": "test", "n": 100, "value": 0.5, "ci95": [0.4, 0.6], "seconds": 1.0, "device": "cpu"}
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
    entries = [
        ENTRY,
        {"metric": "ntk", "value": 3.0},
        {"metric": "ge.acc", "split": "train-test", "value": 0.1},
        {"metric": "seconds_per_epoch", "value": 25.0},
        {"metric": "score", "tool": "rb-score", "value": 0.5},
        {"note": "no metric at all"},
    ]
    record = RECORD
    for entry in entries[:-1]:
        record = results.add(record, entry)
    record = {**record, "evals": [*record["evals"], entries[-1]]}
    kept = results.forget_evaluations(record)
    assert kept["metrics"] == {"ntk": 3.0}
    assert kept["evals"] == [entries[1], entries[-1]]
    assert results.forget_evaluations(RECORD) is RECORD
