"""The generalisation error: one evaluation on the training images and on the test images."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from rbtools.datasets import indices
from rbtools.errors import RbError
from rbtools.evaluation import model_checks, robust_loss
from rbtools.evaluation.spec import Evaluation
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.inputs.resolve import Inputs
from rbtools.jobs import SplitJob, randomness
from rbtools.jobs.evaluate_record import (
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


@dataclass(frozen=True)
class GapJob(SplitJob):
    """The gap of each evaluation. n_train: as in `ge`."""

    evaluations: tuple[Evaluation, ...]
    n_train: int | None = None

    def reads(self, run: Run) -> tuple[str, ...]:
        return ("test", "train")

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        if run.plan is not None and len(self.evaluations) > 1:
            run.plan.each([partial(ge, record, one, run, self.n_train) for one in self.evaluations])
        for one in self.evaluations:
            record = ge(record, one, run, self.n_train)
        return record


def ge(
    record: dict[str, Any], evaluation: Evaluation, run: Run, n_train: int | None = None
) -> dict[str, Any]:
    """Return the record with `ge.NAME` = train - test for every number of the evaluation.

    Both sides are added too (`NAME` and `train.NAME`); training images are not augmented. The interval of a
    difference of accuracies is Newcombe's; other intervals are combined by square-and-add. Gaps of losses and
    errors are `test_minus_train.NAME`. `n_train`: the number of training images, in place of `n`. Images that
    the training held out (`--val`) are not training images: entries identify the others by the hash of their
    numbers (`indices`). `--indices` selects the same numbers of either split. Raises RbError if the data set
    has only one split.
    """
    with _both_splits():
        test = resolve_inputs(record, run.changed(split="test"))
        evaluation = randomness.judged(test, evaluation)
        record = test.record
        of_test, of_train = _images(test, run)
        train = test.on("train", n=n_train or run.selection.n, indices=of_train)
        sides = {"test": test.on("test", indices=of_test), "train": train}
    expected_train, expected_test = (expected_entries(sides[side], evaluation) for side in ("train", "test"))
    check_entries(record, _gaps(expected_train, expected_test), run)
    if run.plan is not None:
        run.plan.each([partial(task_entries, inputs, evaluation) for inputs in sides.values()])
    entries = {side: task_entries(inputs, evaluation) for side, inputs in sides.items()}
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
