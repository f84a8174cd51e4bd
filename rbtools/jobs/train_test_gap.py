"""The generalisation error: one evaluation on the training images and on the test images."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from rbtools.datasets import indices
from rbtools.errors import RbError
from rbtools.evaluation import model_checks, robust_loss
from rbtools.evaluation.spec import Evaluation
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.inputs.resolve import Inputs
from rbtools.jobs import randomness
from rbtools.jobs.evaluate_record import (
    Results,
    add_entries,
    check_entries,
    expected_entries,
    task_entries,
    with_classes,
)
from rbtools.probabilistic.intervals import square_and_add
from rbtools.records import metric_name, results, schema
from rbtools.trainer.validation import trained_on

Entries = list[dict[str, Any]]


def ge(record: dict[str, Any], task: Evaluation, run: Run, n_train: int | None = None) -> dict[str, Any]:
    """Return the record with `ge.NAME` = train - test for every number of the task.

    Both sides are added too (`NAME` and `train.NAME`); training images are not augmented. The interval of a
    difference of accuracies is Newcombe's; other intervals are combined by square-and-add. Gaps of losses and
    errors are `test_minus_train.NAME`. `n_train`: the number of training images, in place of `n`. Entries
    of one split with the same protocol are taken from the record. Images that the training held out (`--val`)
    are not training images: entries identify the others by the hash of their numbers (`indices`). `--indices`
    selects the same numbers of either split. Raises RbError if the data set has only one split.
    """
    with _both_splits():
        test = resolve_inputs(record, run.changed(split="test"))
        task = randomness.judged(test, task)
        record = test.record
        of_test, of_train = _images(test, run)
        train = test.on("train", n=n_train or run.selection.n, indices=of_train)
        sides = {"test": test.on("test", indices=of_test), "train": train}
    expected_train, expected_test = (expected_entries(sides[side], task) for side in ("train", "test"))
    check_entries(record, _gaps(expected_train, expected_test), run)
    of_train_known = any(metric_name.parse(name).split == "train" for name in record.get("metrics", {}))
    side = "train" if of_train_known else "test"
    other = "test" if side == "train" else "train"
    if run.plan is not None:
        run.plan.each([lambda inputs=inputs: task_entries(inputs, task) for inputs in sides.values()])
    entries = {other: task_entries(sides[other], task)}
    part = sides[side].run.selection.indices
    named = {} if part is None else {"indices": part.name}
    there = None if run.store.force else _there(record, entries[other][0], side, sides[side].n, named)
    entries[side] = task_entries(sides[side], task) if there is None else Results(there, [], {}.__getitem__)
    (on_test, clean_test, _), (on_train, clean_train, _) = entries["test"], entries["train"]
    model_checks.report_checks(record, [*on_test, *clean_test], run)
    record = randomness.marked(test.record_with_data(), test)
    for split, (requested, clean, _) in entries.items():
        record = with_classes(record, sides[split], [*requested, *clean])
    for entry in (*clean_test, *clean_train, *on_test, *on_train):
        record = results.add_implicit(record, entry)
    return add_entries(record, _gaps(on_train, on_test), run)


def _images(test: Inputs, run: Run) -> tuple[indices.Indices | None, indices.Indices | None]:
    """The selected images of test and train, None for all. RbError where no training image is left."""
    all_images = {side: test.on(side, indices=None) for side in ("test", "train")}
    trained = trained_on(test.record, all_images["test"].run)
    if run.selection.indices is None:
        return None, trained
    chosen_test, chosen_train = (
        indices.read(run.selection.indices, inputs.data.size) for inputs in all_images.values()
    )
    if trained is None:
        return chosen_test, chosen_train
    used = set(trained.numbers)
    left = [number for number in chosen_train.numbers if number in used]
    if not left:
        raise RbError(
            f"The training held out all images of --n {run.selection.indices}. Name others, or more."
        )
    return chosen_test, indices.of(left)


@contextlib.contextmanager
def _both_splits() -> Iterator[None]:
    """Add advice to the error of a data set that lacks a split."""
    try:
        yield
    except RbError as wrong:
        if "no split" not in str(wrong):
            raise
        advice = " A generalisation error is a difference: give a data set that has train and test."
        raise RbError(f"{wrong}{advice}") from None


def _there(
    record: dict[str, Any], requested: Entries, split: str, n: int, chosen: dict[str, str]
) -> Entries | None:
    """The record's entries of a split with the protocol of `requested`, on the other; None if one is missing.

    `chosen` identifies the images of the split. For probabilistic robustness `n` counts the correct images,
    which the clean accuracy gives.
    """
    entries = {entry.get("metric"): entry for entry in record.get("evals", [])}
    acc = entries.get(metric_name.split_name("acc", split))
    if acc is None or acc.get("n") != n or acc.get("value") is None or not 0 <= acc["value"] <= 1:
        return None
    stored = []
    for entry in requested:
        name = metric_name.split_name(metric_name.without_split(entry["metric"]), split)
        old = entries.get(name)
        if old is None or not _is_whole(old):
            return None
        n_counted = round(acc["value"] * n) if entry.get("denominator") == "correct" else n
        want = {**results.protocol(entry), "split": split, "n": n_counted}
        want.pop("indices", None)
        want |= chosen
        intervals = [{*filter(schema.is_interval, side)} for side in (old, entry)]
        if results.protocol(old) != want or intervals[0] != intervals[1]:
            return None
        stored.append(old)
    return stored


def _gaps(on_train: Entries, on_test: Entries) -> Entries:
    return [_gap(train, test) for train, test in zip(on_train, on_test, strict=True)]


def _gap(train: dict[str, Any], test: dict[str, Any]) -> dict[str, Any]:
    """The entry of train - test; without a value, but with the reason, if a side has none."""
    turned = (
        metric_name.parse(test["metric"]).words[0] in robust_loss.PARTS
    )  # test - train: both grow with overfitting
    name_of = metric_name.gap_name if turned else metric_name.ge_name
    entry = {
        **{
            key: value
            for key, value in test.items()
            if schema.role(key) in ("protocol", "label") or key in ("value", "seconds", "distance")
        },
        "metric": name_of(test["metric"]),
        "split": "test-train" if turned else "train-test",
        "n": [test["n"], train["n"]] if turned else [train["n"], test["n"]],
    }
    if results.LATER in entry["n"]:
        entry["n"] = results.LATER
    if "indices" in train:
        entry["train_indices"] = train["indices"]
    entry["seconds"] = round(train["seconds"] + test["seconds"], 3)
    names = [*filter(schema.is_interval, test)]
    for side, of_side in (("train", train), ("test", test)):
        if of_side["value"] is None:
            return {**entry, "value": None, "reason": f"on {side}: {of_side['reason']}"}
    a, b = (test, train) if turned else (train, test)
    entry["value"] = a["value"] - b["value"]
    for name in names if all(name in train for name in names) else []:
        entry[name] = list(square_and_add(a["value"], a[name], b["value"], b[name]))
    return entry


def _is_whole(entry: dict[str, Any]) -> bool:
    """Whether an entry of the record has the fields of a difference: value, seconds and finite intervals."""
    names = [*filter(schema.is_interval, entry)]
    if not names or not all(map(results.is_number, (entry.get("value"), entry.get("seconds")))):
        return False
    ends = [entry[name] for name in names]
    return all(isinstance(two, list) and len(two) == 2 and all(map(results.is_number, two)) for two in ends)
