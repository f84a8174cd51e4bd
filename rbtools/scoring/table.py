"""The table of ranked records as cells, which `rbtools.scoring.render` writes as text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rbtools.errors import RbError
from rbtools.records import expr
from rbtools.records import metric_name as metric_names
from rbtools.records.results import at, by_metric, counts, interval, is_number, short_dataset
from rbtools.records.sheet_cells import UNSEEN
from rbtools.scoring import means
from rbtools.scoring.rank_order import Ranked, Record

Images = int | tuple[int, ...]  # a number of images; for a difference, the numbers of both sides


SMALL = 5e-4  # smaller numbers have four significant digits instead of four decimals


class TableCell(NamedTuple):
    """A value (None if missing) and, for a measured value, its 95 % interval. `deviation` is the standard
    deviation over the averaged records. `n` is the number of images. `best` is true if no other value in the
    column is better. `digits` is the number of decimals, or None for the default. If `plus_minus` is true,
    half of the interval's width is shown after ±."""

    value: str | float | None
    interval: tuple[float, float] | None = None
    deviation: float | None = None
    n: Images | None = None
    best: bool = False
    digits: int | None = None
    plus_minus: bool = False


class Heading(NamedTuple):
    """A column for the metric or field `title`. `missing` is the text of cells without a value on a terminal.
    `words` is the title in words. `share` is true if the numbers are shares, which may be in percent. In
    LaTeX, neighbouring columns of a `group` are under its name, with the titles `short`."""

    title: str
    numeric: bool
    missing: str = ""
    words: str = ""
    share: bool = False
    group: str = ""
    short: str = ""

    @property
    def text(self) -> str:
        return self.words or self.title


@dataclass(frozen=True)
class Table:
    """`averaged` contains the smallest and the largest number of records that were averaged in a row."""

    headings: list[Heading]
    rows: list[list[TableCell]]
    averaged: tuple[int, int] | None = None

    @property
    def images(self) -> dict[str, list[Images]]:
        """Maps the heading of each column with measured values to the numbers of images in the column."""
        columns: dict[str, list[Images]] = {}
        for heading, *cells in zip(self.headings, *self.rows, strict=True):
            counts = {cell.n for cell in cells if cell.n is not None and cell.value is not None}
            if counts:
                columns[heading.text] = sorted(counts, key=lambda n: n if isinstance(n, tuple) else (n, n))
        return columns

    def parts(self, most: int) -> list[Table]:
        """Split the table into tables of at most `most` columns, each of which begins with the first column.
        Columns of a group are in one part."""
        columns = range(1, len(self.headings))
        kept: list[list[int]] = []
        for _, group in itertools.groupby(columns, lambda at: self.headings[at].group or at):
            some = [*group]
            if not kept or len(kept[-1]) + len(some) >= most:
                kept.append([])
            kept[-1] += some
        return [self.of_columns([0, *part]) for part in kept or [[]]]

    def of_columns(self, places: Sequence[int]) -> Table:
        rows = [[row[at] for at in places] for row in self.rows]
        return replace(self, headings=[self.headings[at] for at in places], rows=rows)

    def without_spreads(self) -> Table:
        """The table without intervals and standard deviations."""
        rows = [[cell._replace(interval=None, deviation=None) for cell in row] for row in self.rows]
        return replace(self, rows=rows)

    @property
    def texts(self) -> set[str]:
        return {cell.value for row in self.rows for cell in row if isinstance(cell.value, str)}


class _Row(NamedTuple):
    ranked: Ranked
    record: Record
    entries: Mapping[str, Mapping[str, Any]]


class _TableColumn(NamedTuple):
    """If `optional` is true, the column is left out if no record has a value."""

    heading: Heading
    cell: Callable[[_Row], TableCell]
    optional: bool = False


# --- the tables -----------------------------------------------------------------------------------


def build(
    ranked: Sequence[Ranked],
    key: str | None = None,
    *,
    metrics: Sequence[str] | None = None,
    fields: Sequence[str] | None = None,
    also: Sequence[str] = (),
    paired: Sequence[str] = (),
) -> Table:
    """Build the table, with columns for rank, name, dataset, method, seed, and metrics.

    `key` is the metric or expression of the ranking. `metrics` contains the names of the metrics in their
    order, or None for all metrics of the records; the key comes first unless `metrics` contains it. The
    columns dataset, method and seed are left out if no record has a value, and the column seed also if all
    records have the same seed. If `fields` are given, they replace the columns before the metrics; the
    field "records" is the number of merged records. `also` adds fields. `paired` contains the metrics whose
    comparison with a reference is shown.
    """
    records = [entry.record for entry in ranked]
    wanted = metric_names.names(records) if metrics is None else metrics
    if key is not None and (metrics is None or key not in wanted):
        wanted = [key, *(name for name in wanted if name != key)]
    columns = [field_column("rank"), *_identity(records)] if fields is None else [*map(field_column, fields)]
    titles = {column.heading.title for column in columns}
    columns += [column for column in map(field_column, also) if column.heading.title not in titles]
    columns += _MARKS
    for name in wanted:
        columns.append(metric_column(name, is_key=name == key))
        columns += _compared(name, PAIRED, "paired") if name in paired else ()
        columns += _compared(name, PUBLISHED, "published")
    columns += _class_columns(records)
    return _table(columns, ranked)


def _table(columns: Sequence[_TableColumn], ranked: Sequence[Ranked]) -> Table:
    records = [entry.record for entry in ranked]
    rows = [_Row(entry, entry.record, by_metric(entry.record)) for entry in ranked]
    headings, kept = [], []
    for column in columns:
        cells = [column.cell(row) for row in rows]
        if not column.optional or any(cell.value is not None for cell in cells):
            headings.append(column.heading)
            kept.append(_with_digits(cells))
    return Table(headings, [list(cells) for cells in zip(*kept, strict=True)], averaged(records))


def _with_digits(cells: Sequence[TableCell]) -> list[TableCell]:
    """The cells of a column with the same number of decimals: four up to 1, and otherwise four significant
    digits of the largest number. Columns of integers or with small numbers (p-values) are unchanged."""
    numbers = [cell.value for cell in cells if is_number(cell.value)]
    if all(isinstance(one, int) for one in numbers) or any(0 < abs(one) < SMALL for one in numbers):
        return [*cells]
    ends = [end for cell in cells if is_number(cell.value) for end in (cell.value, *(cell.interval or ()))]
    largest = max(map(abs, ends))
    digits = max(0, 4 - len(str(int(largest)))) if largest > 1 else 4
    return [cell._replace(digits=digits) for cell in cells]


def averaged(records: Iterable[Record]) -> tuple[int, int] | None:
    """The smallest and the largest number of merged records; None if no records were merged."""
    counts = [(record.get("aggregated") or {}).get("records", 1) for record in records]
    several = [count for count in counts if type(count) is int and count > 1]
    return (min(several), max(several)) if several else None


# --- columns --------------------------------------------------------------------------------------

IDENTITY = {
    "name": ("arch", "name"),
    "dataset": ("dataset",),
    "method": ("train", "method"),
    "seed": ("train", "seed"),
    "checkpoint": ("checkpoint_file",),
}


def _identity(records: Sequence[Record]) -> Iterable[_TableColumn]:
    """The columns that identify the model of a record; seeds and files are included only if they differ."""
    for title, path in IDENTITY.items():
        values = [value for record in records if (value := at(record, path)) is not None]
        if title not in ("seed", "checkpoint") or any(value != values[0] for value in values):
            yield _path_column(Heading(title, title == "seed"), path, optional=title != "name")


def _path_column(
    heading: Heading, path: tuple[str, ...], *, optional: bool = True, with_interval: bool = False
) -> _TableColumn:
    """If `with_interval` is true, the interval that is stored next to the field is also shown."""

    def cell(row: _Row) -> TableCell:
        value = at(row.record, path)
        if path == ("dataset",) and isinstance(value, str):
            value = short_dataset(value)
        if isinstance(value, bool):
            value = "yes" if value else "no"
        return TableCell(
            _cell_value(value),
            interval(at(row.record, path[:-1])) if with_interval and is_number(value) else None,
        )

    return _TableColumn(heading, cell, optional)


def field_column(name: str) -> _TableColumn:
    """The column of the rank, of the number of merged records, or of a field, which may be a column's title
    such as `method`, a path, a metric or an expression."""
    if name == "rank":
        return _TableColumn(Heading("rank", True), lambda row: TableCell(row.ranked.rank))
    if name == "records":
        return _path_column(Heading("records", True), ("aggregated", "records"), optional=False)
    titles = {path: title for title, path in IDENTITY.items()}
    path = IDENTITY.get(name, tuple(name.split(".")))
    if path in titles:
        return _path_column(Heading(titles[path], titles[path] == "seed"), path, optional=False)
    compiled = expr.compile(name)
    return _TableColumn(Heading(name, False), lambda row: TableCell(_cell_value(_value(compiled, row))))


def metric_column(name: str, *, is_key: bool = False) -> _TableColumn:
    """The column of a metric, of an expression over metrics, or of a field. `is_key` marks the sort key."""
    compiled = expr.Expression(name, any_name=True)

    def cell(row: _Row) -> TableCell:
        value = row.ranked.value if is_key else (row.record.get("metrics") or {}).get(name)
        if value is None and not is_key:
            value = _value(compiled, row)
        if not is_number(value):
            return TableCell(value if isinstance(value, str) else None)
        found = measured(value, row.entries.get(name, {}))
        if is_key and found.interval is None:
            found = found._replace(interval=interval(row.record.get("ranking")))
        if compiled.is_mean and (is_key or name not in row.entries):
            ends = found.interval or means.interval(row.record, compiled)
            found = found._replace(interval=ends, n=found.n or means.images(row.record, compiled))
        return found

    return _TableColumn(_metric_heading(name), cell)


def measured(value: float | str | None, entry: Mapping[str, Any]) -> TableCell:
    """The cell of a value; its entry contains the interval, standard deviation and number of images."""
    std, images = entry.get("std"), counts(entry)
    n = images[0] if len(set(images)) == 1 else tuple(images) or None
    return TableCell(value, interval(entry), std if is_number(std) else None, n)


# Columns next to a metric: the suffix of a column's name, and the field in the column.
PUBLISHED = {" published": "value", " difference": "difference", " within": "within"}
PAIRED = {" paired": "difference", " p": "p", " p_raw": "p_raw"}


def _compared(name: str, columns: Mapping[str, str], section: str) -> Iterable[_TableColumn]:
    path = (section, "metrics", name)
    for suffix, field in columns.items():
        heading = _metric_heading(name, suffix)._replace(numeric=field != "within", missing="–")
        yield _path_column(heading, (*path, field), with_interval=suffix == " paired")


def _metric_heading(name: str, suffix: str = "") -> Heading:
    share = is_share(name) and suffix not in (" p", " p_raw")
    return Heading(f"{name}{suffix}", True, words=f"{metric_names.heading(name)}{suffix}", share=share)


def is_share(name: str) -> bool:
    """Whether a metric, or a mean or difference of metrics, is a share of images or of noisy copies."""
    tokens = expr.tokens(name)
    of_names = [token.text for token in tokens if token.kind == "name"]
    functions = {"mean", "min", "max", "std", "union", "union.common", "class.min"} & {*of_names}
    signs = {token.text for token in tokens if token.kind != "name"}
    names = [one for one in of_names if one not in functions]
    of_globs = [re.sub(r"\*|\?|\[[^][]*\]", "1", one) for one in names]  # pgd20.* as pgd20.1
    return bool(names) and all(map(metric_names.is_share, of_globs)) and signs <= {"(", ")", ",", "+", "-"}


def _ranks(row: _Row) -> TableCell:
    ends = interval(row.record, "rank_ci95")
    return TableCell("–".join(map(str, dict.fromkeys(ends))) if ends else None)


# Band, interval of ranks and Pareto front, if the ranking has them.
_MARKS = (
    _path_column(Heading("band", True), ("band",)),
    _TableColumn(Heading("ranks", False), _ranks, optional=True),
    _TableColumn(
        Heading("front", False),
        lambda row: TableCell("*" if row.record.get("pareto") else None),
        optional=True,
    ),
)


def _class_columns(records: Sequence[Record]) -> list[_TableColumn]:
    """Columns for the worst class, its accuracy and the accuracy of each class, if the records have these."""
    classes = ("per_class", "classes")

    def worst(row: _Row) -> TableCell:
        found = at(row.record, (*classes, str(at(row.record, ("per_class", "worst")))))
        return TableCell(at(found, ("value",)), interval(found))

    accuracy = Heading("worst", True, missing="–", share=True)
    columns = [
        _path_column(Heading("worst class", True), ("per_class", "worst")),
        _TableColumn(accuracy, worst, optional=True),
    ]
    for label in dict.fromkeys(label for one in records for label in at(one, classes) or ()):
        heading = accuracy._replace(title=f"class {label}")
        columns.append(_path_column(heading, (*classes, label, "value"), with_interval=True))
    return columns


def _value(compiled: expr.Expression, row: _Row) -> Any:
    try:
        return compiled(row.record)
    except RbError:
        return None


def _cell_value(value: object) -> str | float | None:
    return value if value is None or is_number(value) else str(value)


def is_detail(name: str) -> bool:
    """Whether this metric is among the first metrics that a narrow table leaves out."""
    parts = metric_names.parse(name)
    severity = parts.over == "severity" and not parts.prefixes
    return severity or parts.split != "test" or name.startswith("seconds")


# --- cells as text --------------------------------------------------------------------------------


def sides(n: Images | None) -> int | str | None:
    """The text `100 + 200` for the numbers of images of a difference; another number is unchanged."""
    return f"{n[0]} + {n[1]}" if isinstance(n, tuple) else n


def figure(value: float, digits: int | None = None) -> str:
    """The text of a number with this many decimals. By default there are four decimals up to 1 (accuracies),
    and otherwise four significant digits; integers have no decimals."""
    if isinstance(value, int) and digits is None:
        return str(value)
    if digits is not None and (value == 0 or abs(value) >= 0.5 * 10**-digits):
        return f"{round(float(value), digits) + 0.0:.{digits}f}"
    if value == 0 or SMALL <= abs(value) <= 1:
        return f"{value + 0.0:.4f}"  # adding 0.0 turns -0.0 into 0.0
    return f"{value:.4g}"


def spread(cell: TableCell) -> str:
    """What a cell shows after its value: "deviation", "half" (of the interval, after ±), "brackets" or "".
    "half" is not used for an interval with one end more than twice as far from the value as the other."""
    if cell.value is None or isinstance(cell.value, str):
        return ""
    if cell.deviation is not None or cell.interval is None:
        return "deviation" if cell.deviation is not None else ""
    shorter, longer = sorted((cell.value - cell.interval[0], cell.interval[1] - cell.value))
    return "half" if cell.plus_minus and shorter >= 0.5 * longer else "brackets"


def text(cell: TableCell) -> str:
    """The text of a cell, such as `0.5315 [0.5217, 0.5413]` or `0.53 ± 0.01`; "" if the cell has no value."""
    if cell.value is None:
        return ""
    if isinstance(cell.value, str):
        return printable(cell.value)
    shown, beside = figure(cell.value, cell.digits), spread(cell)
    if not beside:
        return shown
    low, high = cell.interval or (0.0, 0.0)
    if beside == "brackets":
        return f"{shown} [{figure(low, cell.digits)}, {figure(high, cell.digits)}]"
    half = (high - low) / 2 if cell.deviation is None else cell.deviation
    return f"{shown} ± {half:.{len(shown.partition('.')[2])}f}"


def printable(words: str) -> str:
    """Text on one line without control characters, which untrusted records may contain."""
    return _CONTROL.sub(lambda found: " " if found[0].isspace() else "\ufffd", words)


_CONTROL = re.compile(rf"[\n\t\r{UNSEEN}]")
