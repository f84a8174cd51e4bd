"""A table with one row for each image of each metric (`rb-convert per-image`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rbtools.errors import RbError
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
}


def frame(entries: Iterable[Record]) -> pandas.DataFrame:
    """The rows of all entries in the columns of KINDS. Unknown values are missing."""
    import pandas

    parts = [pandas.DataFrame(columns).astype(KINDS) for columns in entries]
    return pandas.concat(parts or [pandas.DataFrame(columns=list(KINDS))], ignore_index=True)


def columns_of(record: Record, entry: Record, model: str) -> Record | None:
    """The columns of an entry of the record `model`, or None if the entry has no answers. A column is an
    array (N,) or one value.

    The column `example` contains the image's place in the evaluation. Raises RbError if the answers are
    damaged.
    """
    own = answers.of(entry)
    if own is None:
        return None
    classes = None
    with contextlib.suppress(RbError):  # if the record lacks the labels
        classes = answers.labels_of(record, own)
    checkpoint = record.get("checkpoint")
    return {
        "model": model,
        "checkpoint": checkpoint if isinstance(checkpoint, str) else "",
        "example": np.arange(len(own.right)),
        "class": classes,
        "metric": str(entry["metric"]),
        "correct": own.right,
    }
