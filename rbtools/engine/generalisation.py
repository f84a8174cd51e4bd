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
        **test,
        "metric": metrics.ge_name(test["metric"]),
        "split": "train-test",
        "n": [train["n"], test["n"]],
    }
    entry["seconds"] = round(train["seconds"] + test["seconds"], 3)
    if train["value"] is None or test["value"] is None:
        side, other = ("train", train) if train["value"] is None else ("test", test)
        entry.pop("ci95", None)
        return {**entry, "value": None, "reason": f"on {side}: {other['reason']}"}
    interval = square_and_add(train["value"], train["ci95"], test["value"], test["ci95"])
    return {**entry, "value": train["value"] - test["value"], "ci95": list(interval)}
