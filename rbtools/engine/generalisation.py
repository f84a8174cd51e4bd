"""The generalisation error: one evaluation on the training images and on the test images."""

from __future__ import annotations

import dataclasses
from typing import Any

from rbtools.engine import checkpoints, sanity, subject
from rbtools.engine.evaluate import answers, put
from rbtools.engine.questions import Question
from rbtools.engine.run import Run
from rbtools.probabilistic.intervals import square_and_add
from rbtools.records import metrics, results

# What is found on one split and does not describe a difference.
_OF_ONE_SIDE = frozenset(
    "quantiles undecided draws_spent draws_saved confirmed passes detail broken_by warnings".split()
)


def ge(record: dict[str, Any], question: Question, run: Run, n_train: int | None = None) -> dict[str, Any]:
    """Return the record with `ge.NAME` = train - test for every number the question gives.

    Both sides come along (`NAME` and `train.NAME`); training images are not augmented. The interval
    of a difference of accuracies is Newcombe's; other numbers' intervals are squared and added.
    """
    record = checkpoints.prepared(record, dataclasses.replace(run, split="test"))
    on_test, clean_test = answers(record, question, run, "test")
    on_train, clean_train = answers(record, question, dataclasses.replace(run, n=n_train), "train")
    sanity.tell(record, [*on_test, *clean_test], run)
    record = subject.with_data(record, run)
    for entry in (*clean_test, *clean_train, *on_test, *on_train):
        record = results.add_byproduct(record, entry)
    return put(record, [_gap(a, b) for a, b in zip(on_train, on_test, strict=True)], run)


def _gap(train: dict[str, Any], test: dict[str, Any]) -> dict[str, Any]:
    """The entry of train - test; without a value, and with the reason, where a side has none."""
    entry = {
        **{key: value for key, value in test.items() if key not in _OF_ONE_SIDE},
        "metric": metrics.ge_name(test["metric"]),
        "split": "train-test",
        "n": [train["n"], test["n"]],
    }
    entry["seconds"] = round(train["seconds"] + test["seconds"], 3)
    if train["value"] is None or test["value"] is None:
        side, other = ("train", train) if train["value"] is None else ("test", test)
        entry = {key: value for key, value in entry.items() if not _is_interval(key)}
        return {**entry, "value": None, "reason": f"on {side}: {other['reason']}"}
    (name,) = filter(_is_interval, test)
    interval = square_and_add(train["value"], train[name], test["value"], test[name])
    return {**entry, "value": train["value"] - test["value"], name: list(interval)}


def _is_interval(key: str) -> bool:
    """`ci95`, `ci99.9` ..."""
    return key.startswith("ci") and key[2:3].isdigit()
