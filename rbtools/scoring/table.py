"""The table of ranked records: which columns, which numbers, how many digits.

`build` makes the table, `rbtools.scoring.render` writes it as CSV, Markdown or LaTeX; the terminal
table of `rb-rank` is drawn from the same cells.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rbtools.records import metrics as metric_names
from rbtools.scoring.rank import Ranked, Record

# What a narrow table leaves out first: the other split, each severity of each corruption, and cost.
_DETAIL = re.compile(r"(train|valid|val)\.|corrupt\.[^.]+\.\d$|seconds")


class Cell(NamedTuple):
    """A value (None where there is none) and, for a measured one, its 95 % interval."""

    value: str | float | None
    interval: tuple[float, float] | None = None


class Heading(NamedTuple):
    """A column's title, and whether it holds numbers."""

    title: str
    numeric: bool


@dataclass(frozen=True)
class Table:
    """Rows of cells under headings; `left_out` are metrics that did not fit."""

    headings: list[Heading]
    rows: list[list[Cell]]
    left_out: list[str]


Intervals = Mapping[str, tuple[float, float]]


class _Column(NamedTuple):
    heading: Heading
    cell: Callable[[Ranked, Intervals], Cell]


def build(
    ranked: Sequence[Ranked], key: str, *, metrics: Sequence[str] | None = None, limit: int | None = None
) -> Table:
    """The table: rank, name, dataset, method, seed, what it is ranked by, and other metrics.

    `key` is the metric or expression of the ranking. `metrics` names the others; without it all that
    the records have are shown, at most `limit` of them. Dataset, method and seed are left out
    where no record has one, seed also where all that have one have the same.
    """
    records = [entry.record for entry in ranked]
    others = choose_metrics(records, key, limit) if metrics is None else [m for m in metrics if m != key]
    columns = [*_identity(records), _key_column(key), *map(_metric_column, others)]
    rows = []
    for entry in ranked:
        intervals = _intervals(entry.record)
        rows.append([column.cell(entry, intervals) for column in columns])
    known = metric_names.names(records) if metrics is None else []
    left_out = [name for name in known if name != key and name not in others]
    return Table([column.heading for column in columns], rows, left_out)


def choose_metrics(records: Iterable[Record], key: str, limit: int | None = None) -> list[str]:
    """The metrics to show beside `key`, in the order in which the records have them.

    Where there are more than `limit`, those of other splits and of single severities go first.
    """
    known = [name for name in metric_names.names(records) if name != key]
    kept = set(sorted(known, key=is_detail)[:limit])
    return [name for name in known if name in kept]


def is_detail(name: str) -> bool:
    """Whether a narrow table leaves this metric out before others."""
    return bool(_DETAIL.match(name))


def figure(value: float) -> str:
    """A number for people: four decimals up to 1 (accuracies), else four digits; whole numbers whole."""
    if isinstance(value, int):
        return str(value)
    if value == 0 or 5e-4 <= abs(value) <= 1:
        return f"{value + 0.0:.4f}"  # the sum turns -0.0 into 0.0
    return f"{value:.4g}"


def text(cell: Cell) -> str:
    """A cell for people, `0.5315 [0.5217, 0.5413]`; empty where there is no value."""
    if cell.value is None:
        return ""
    if isinstance(cell.value, str):
        return plain(cell.value)
    if cell.interval is None:
        return figure(cell.value)
    low, high = map(figure, cell.interval)
    return f"{figure(cell.value)} [{low}, {high}]"


def plain(words: str) -> str:
    """Text on one line without control characters, which names from foreign records may hold."""
    return words.translate(_CONTROL)


_CONTROL = {code: " " if chr(code).isspace() else "\ufffd" for code in [*range(32), *range(127, 160)]}
_CONTROL |= dict.fromkeys([0x2028, 0x2029], " ")
_CONTROL |= dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\ufffd")  # text direction


def _identity(records: list[Record]) -> list[_Column]:
    columns = [_Column(Heading("rank", True), lambda entry, _: Cell(entry.rank))]
    for title, path in _IDENTITY.items():
        values = [_at(record, path) for record in records]
        if title == "name" or (any(v is not None for v in values) and (title != "seed" or _differ(values))):
            columns.append(_identity_column(title, path))
    return columns


_IDENTITY = {
    "name": ("arch", "name"),
    "dataset": ("dataset",),
    "method": ("train", "method"),
    "seed": ("train", "seed"),
}


def _identity_column(title: str, path: tuple[str, ...]) -> _Column:
    def cell(entry: Ranked, _: Intervals) -> Cell:
        value = _at(entry.record, path)
        return Cell(value if value is None or _is_number(value) else str(value))

    return _Column(Heading(title, title == "seed"), cell)


def _key_column(key: str) -> _Column:
    return _Column(Heading(key, True), lambda entry, intervals: Cell(entry.value, intervals.get(key)))


def _metric_column(name: str) -> _Column:
    def cell(entry: Ranked, intervals: Intervals) -> Cell:
        value = (entry.record.get("metrics") or {}).get(name)
        return Cell(value, intervals.get(name)) if _is_number(value) else Cell(None)

    return _Column(Heading(name, True), cell)


def _intervals(record: Record) -> dict[str, tuple[float, float]]:
    entries = record.get("evals") or []
    return {entry["metric"]: (entry["ci95"][0], entry["ci95"][1]) for entry in entries if entry.get("ci95")}


def _at(record: Record, path: tuple[str, ...]) -> Any:
    value: Any = record
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _differ(values: list[Any]) -> bool:
    known = [value for value in values if value is not None]
    return any(value != known[0] for value in known)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
