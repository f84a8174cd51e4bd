"""What models did on each image, added to records later from the outcomes in a store (`rb-store answers`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools.errors import RbError
from rbtools.execution.run import Run
from rbtools.inputs.data import data_of
from rbtools.jobs import evaluate_record
from rbtools.jobs.earlier_outcomes import ImageOutcomes
from rbtools.records import answers, checksums, metric_name
from rbtools.trainer.validation import trained_on

if TYPE_CHECKING:
    import numpy as np

Record = dict[str, Any]


class ExampleList(NamedTuple):
    """A list of examples: their places in their split and their classes, int64 (N,) each."""

    ids: np.ndarray
    classes: np.ndarray


class StoredAnswers:
    """Adds to records the bits of their entries and the classes of the images.

    outcomes: what the store has. lacking: the metrics of entries whose outcomes it does not have, and their
    tools. without_data: data sets that are not at hand, and why.
    """

    def __init__(self, run: Run, checkpoints: Iterable[str]) -> None:
        self._run, self.outcomes = run, ImageOutcomes(run.store, checkpoints)
        self._lists: dict[str, ExampleList | None] = {}
        self.lacking: list[tuple[str, str]] = []
        self.without_data: dict[str, str] = {}

    def to(self, record: Record) -> tuple[Record, list[RbError]]:
        """The record with the answers, and what is wrong with those that it has. Entries stay in their order.
        An entry that was changed since it was written does not get a new checksum.
        """
        entries, sums = [], checksums.known(record)
        wrong = []
        whole = record
        for entry in record.get("evals") or ():
            try:
                own = answers.of(entry)
            except RbError as damaged:
                wrong.append(damaged)
                entries.append(entry)
                continue
            added = entry if own is not None or not _of_images(entry) else self._added(record, entry)
            entries.append(added)
            if answers.FIELD in added:
                whole = self._with_classes(whole, added)
            name = entry.get("metric")
            if added is not entry and name in sums and checksums.fits(sums[name], entry):
                sums[name] = checksums.of(added)
        if all(new is old for new, old in zip(entries, record.get("evals") or (), strict=True)):
            return whole, wrong
        return {**whole, "evals": entries, **({checksums.FIELD: sums} if sums else {})}, wrong

    def _added(self, record: Record, entry: Record) -> Record:
        added = self.outcomes.with_answers(record, entry)
        if added is entry:
            self.lacking.append((str(entry["metric"]), str(entry.get("tool", "rb-attack"))))
        return added

    def _with_classes(self, record: Record, entry: Record) -> Record:
        """The record with the classes of an entry's images, if their data set is at hand."""
        name, images = entry[answers.FIELD]["examples"], entry[answers.FIELD]["images"]
        if answers.classes_known(record, name) >= images:
            return record
        examples = self.examples(record, entry)
        if examples is None or len(examples.classes) < images:
            return record
        return answers.with_labels(record, name, examples.classes[:images])

    def examples(self, record: Record, entry: Record) -> ExampleList | None:
        """The whole list of examples of an entry with answers; None if its data set is not at hand."""
        name = entry[answers.FIELD]["examples"]
        if name not in self._lists:
            self._lists[name] = self._read_examples(record, entry, name)
        return self._lists[name]

    def _read_examples(self, record: Record, entry: Record, examples: str) -> ExampleList | None:
        name = entry.get("dataset", record.get("dataset"))
        run, split = self._run, str(entry.get("split", "test"))
        try:
            if "indices" in entry and split == "train":  # those that the training did not hold out (rb-ge)
                run = run.changed(indices=trained_on(record, run))
            data = data_of({**record, "dataset": name}, run, split)
            fields = {"data": data.fingerprint, "split": split}
            if evaluate_record.examples_digest(fields, data.protocol()) != examples:
                raise RbError("The evaluation had other images, such as those of a list (--indices LIST).")
            labels = data.load().labels
        except RbError as missing:
            self.without_data.setdefault(str(name), str(missing))
            return None
        order = data.order(labels)
        return ExampleList(order.numpy(), labels[order].numpy())


def _of_images(entry: Record) -> bool:
    """Whether the value is a share of images, each of which counts or does not."""
    name = entry.get("metric")
    if (
        not isinstance(name, str)
        or type(entry.get("n")) is not int
        or {"two_phase", "published"} & entry.keys()
    ):
        return False
    return metric_name.is_share_of_images(name) and entry.get("value") is not None
