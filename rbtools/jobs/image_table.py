"""A table of what models did on each image, a row for each image of each metric (`rb-convert per-image`)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import IO, Any, NamedTuple

from rbtools.datasets.parquet import pyarrow_modules
from rbtools.errors import RbError
from rbtools.jobs.add_answers import StoredAnswers
from rbtools.lazy import np
from rbtools.records import answers, sheet_cells

Record = dict[str, Any]
COLUMNS = ("model", "checkpoint", "example", "class", "metric", "correct", "confidence")
_AT_ONCE = 1 << 18  # rows of a group of a parquet file


class ImageRows(NamedTuple):
    """The rows of one entry.

    examples: int64 (N,), places in the split, or in the list of the evaluation if the data set is not at
    hand. classes: int64 (N,), confidences: float32 (N,) of the true class, None if unknown. correct: bool
    (N,).
    """

    model: str
    checkpoint: str
    metric: str
    examples: np.ndarray
    classes: np.ndarray | None
    correct: np.ndarray
    confidences: np.ndarray | None


def rows_of(record: Record, model: str, stored: StoredAnswers) -> Iterator[ImageRows]:
    """The rows of each entry with answers, of a record of that name. Damaged answers are left out."""
    for entry in record.get("evals") or ():
        try:
            own = answers.of(entry)
        except RbError:  # StoredAnswers reported it
            continue
        if own is None:
            continue
        count, outcomes = len(own.right), stored.outcomes.rows(record, entry)
        examples = stored.examples(record, entry)
        ids, classes = np.arange(count), _own_classes(record, own)
        if examples is not None and len(examples.ids) >= count:
            ids, classes = examples.ids[:count], examples.classes[:count]
        confidences = None
        if outcomes is not None and len(outcomes) == count:
            classes, confidences = outcomes[:, 0].astype(np.int64), _confidences(outcomes)
        checkpoint = record.get("checkpoint")
        yield ImageRows(
            model,
            checkpoint if isinstance(checkpoint, str) else "",
            str(entry["metric"]),
            ids,
            classes,
            own.right,
            confidences,
        )


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


def csv_texts(parts: Iterable[ImageRows]) -> Iterator[bytes]:
    """The table as CSV: its header, then the lines of each entry.

    No text begins like a formula of a spreadsheet; correct is 1 or 0; what is unknown is empty.
    """
    yield ",".join(COLUMNS).encode() + b"\n"
    for part in parts:
        before, metric = _cells(part.model, part.checkpoint), _cells(part.metric)
        rows = zip(
            part.examples.tolist(),
            repeat("") if part.classes is None else part.classes.tolist(),
            part.correct.astype(int).tolist(),
            repeat("") if part.confidences is None else [f"{p:.6g}" for p in part.confidences.tolist()],
            strict=False,
        )
        lines = [
            f"{before},{number},{label},{metric},{right},{share}\n" for number, label, right, share in rows
        ]
        yield "".join(lines).encode()


def _cells(*texts: str) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(map(sheet_cells.cell, texts))
    return line.getvalue()


def write_csv(parts: Iterable[ImageRows], stream: IO[bytes]) -> None:
    """Write the table as CSV."""
    stream.writelines(csv_texts(parts))


def write_parquet(parts: Iterable[ImageRows], stream: IO[bytes]) -> None:
    """Write the table as parquet. What is unknown is null.

    Raises RbError where pyarrow is not installed.
    """
    pa, parquet = pyarrow_modules()
    kinds = (pa.string(), pa.string(), pa.int64(), pa.int32(), pa.string(), pa.bool_(), pa.float32())
    schema = pa.schema(list(zip(COLUMNS, kinds, strict=True)))
    waiting, held = [], 0
    with parquet.ParquetWriter(stream, schema) as writer:
        for part in parts:
            rows = len(part.correct)
            columns = (
                pa.repeat(part.model, rows),
                pa.repeat(part.checkpoint, rows),
                part.examples,
                pa.nulls(rows) if part.classes is None else part.classes,
                pa.repeat(part.metric, rows),
                part.correct,
                pa.nulls(rows) if part.confidences is None else part.confidences,
            )
            cast = [
                pa.array(column).cast(kind) if isinstance(column, np.ndarray) else column.cast(kind)
                for column, kind in zip(columns, kinds, strict=True)
            ]
            waiting.append(pa.table(cast, schema=schema))
            held += rows
            if held >= _AT_ONCE:
                writer.write_table(pa.concat_tables(waiting).combine_chunks())
                waiting, held = [], 0
        if waiting:
            writer.write_table(pa.concat_tables(waiting).combine_chunks())
