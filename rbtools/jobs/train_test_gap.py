"""The generalisation error: the difference of an evaluation on the training images and on the test images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rbtools.datasets import indices
from rbtools.errors import NoSplit, RbError
from rbtools.evaluation import robust_loss
from rbtools.evaluation.spec import Evaluation
from rbtools.execution.run import Run
from rbtools.inputs.resolve import Inputs
from rbtools.jobs.evaluate_record import Ask, Entries, Plan, PlanJob
from rbtools.probabilistic.intervals import square_and_add
from rbtools.records import metric_name, results, schema
from rbtools.trainer.validation import trained_on


@dataclass(frozen=True)
class GapJob(PlanJob):
    """Computes the gap of each evaluation. For each number NAME of the evaluation, the gap is `ge.NAME` =
    train - test.

    The numbers on both splits (`NAME` and `train.NAME`) are also added to the record. Training images are not
    augmented. A difference of accuracies has Newcombe's interval, and other intervals are combined by
    square-and-add. Gaps of losses and errors are called `test_minus_train.NAME`. `n_train` replaces `n` as
    the number of training images. Images that the training run held out (`--val`) do not count as training
    images. Entries identify the remaining images by the hash of their numbers (`indices`). With `--indices`,
    both splits use the same numbers. Raises RbError if the data set has only one split.
    """

    evaluations: tuple[Evaluation, ...]
    n_train: int | None = None

    def reads(self, run: Run) -> tuple[str, ...]:
        return ("test", "train")

    def plans(self, record: dict[str, Any], run: Run) -> Sequence[Plan]:
        return [partial(self._gaps, evaluation=one) for one in self.evaluations]

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        try:
            return super().__call__(record, run.changed(split="test"))
        except NoSplit as wrong:
            advice = " A generalisation error compares train and test: use a data set that has both."
            raise RbError(f"{wrong}{advice}") from None

    def _gaps(self, ask: Ask, evaluation: Evaluation) -> Iterator[Entries]:
        test = ask.inputs
        n = self.n_train or test.run.selection.n
        train = test.on("train", n=n, indices=_images(test))
        yield list(map(_gap, ask.expected(evaluation, train), ask.expected(evaluation, test)))
        on_test, on_train = (found.entries for found in ask(evaluation, test, train))
        ask.along += [*on_test, *on_train]
        yield list(map(_gap, on_train, on_test))


def _images(test: Inputs) -> indices.Indices | None:
    """The selected training images, or None for all. Raises RbError if no image is left."""
    chosen, every = test.run.selection.indices, test.run.changed(indices=None)
    trained = trained_on(test.record, every)
    if chosen is None:
        return trained
    asked = indices.read(chosen, test.on("train", indices=None).data.size)
    if trained is None:
        return asked
    used = set(trained.numbers)
    left = [number for number in asked.numbers if number in used]
    if not left:
        raise RbError(f"The training run held out all images of --n {chosen}. Select others, or more.")
    return indices.of(left)


def _gap(train: dict[str, Any], test: dict[str, Any]) -> dict[str, Any]:
    """The entry of train - test. If the number has no value on one split, the entry contains the reason."""
    # test - train for losses and errors, because these grow with overfitting
    turned = metric_name.parse(test["metric"]).words[0] in robust_loss.PARTS
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
    if "image_list" in test and "image_list" in train:
        pair = [test["image_list"], train["image_list"]]
        entry["image_list"] = pair if turned else pair[::-1]
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
