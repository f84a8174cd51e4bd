"""A table of what models did on each image, a row for each image of each metric (`rb-convert per-image`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rbtools.errors import RbError
from rbtools.jobs.add_answers import StoredAnswers
from rbtools.lazy import np
from rbtools.records import answers

if TYPE_CHECKING:
    import pandas

Record = dict[str, Any]
KINDS = {
    "model": object,
    "checkpoint": object,
    "example": "int64",
    "class": "Int32",
    "metric": object,
    "correct": bool,
    "confidence": "float32",
}


def frame(entries: Iterable[Record]) -> pandas.DataFrame:
    """The rows of all entries, in the columns of KINDS. What is unknown is missing."""
    import pandas

    parts = [pandas.DataFrame(columns).astype(KINDS) for columns in entries]
    return pandas.concat(parts or [pandas.DataFrame(columns=list(KINDS))], ignore_index=True)


def columns_of(record: Record, model: str, stored: StoredAnswers) -> Iterator[Record]:
    """The columns of each entry with answers, of a record of that name: arrays (N,), or one value.

    example: the place in the split, or in the list of the evaluation if the data set is not at hand.
    confidence: of the true class, from 0 to 1. Damaged answers are left out.
    """
    checkpoint = record.get("checkpoint")
    for entry in record.get("evals") or ():
        try:
            own = answers.of(entry)
        except RbError:  # StoredAnswers reported it
            continue
        if own is None:
            continue
        count, outcomes = len(own.right), stored.outcomes.rows(record, entry)
        examples = stored.examples(record, entry)
        ids, classes, confidences = np.arange(count), _own_classes(record, own), None
        if examples is not None and len(examples.ids) >= count:
            ids, classes = examples.ids[:count], examples.classes[:count]
        if outcomes is not None and len(outcomes) == count:
            classes, confidences = outcomes[:, 0].astype(np.int64), _confidences(outcomes)
        yield {
            "model": model,
            "checkpoint": checkpoint if isinstance(checkpoint, str) else "",
            "example": ids,
            "class": classes,
            "metric": str(entry["metric"]),
            "correct": own.right,
            "confidence": confidences,
        }


def _own_classes(record: Record, own: answers.Answers) -> np.ndarray | None:
    try:
        return answers.labels_of(record, own)
    except RbError:
        return None


def _confidences(rows: np.ndarray) -> np.ndarray:
    """The softmax probability of the label, from rows (N, 1 + K): label, logits."""
    labels, logits = rows[:, :1].astype(np.int64), rows[:, 1:].astype(np.float64)
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    of_label = np.take_along_axis(exponentials, labels, 1)[:, 0]
    probabilities: np.ndarray = (of_label / exponentials.sum(1)).astype(np.float32)
    return probabilities
