"""The table of ranked records: its columns, numbers and digits.

`build` makes the table, `rbtools.scoring.render` writes it as CSV, Markdown or LaTeX; the terminal
table of `rb-rank` is drawn from the same cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, NamedTuple

from rbtools.errors import RbError, UsageError, near
from rbtools.records import expr
from rbtools.records import metric_name as metric_names
from rbtools.records.results import is_number, short_dataset
from rbtools.scoring import means, metric_words
from rbtools.scoring.rank_order import Ranked, Record


class TableCell(NamedTuple):
    """A value (None if missing) and, for a measured one, its 95 % interval. deviation: of the sample that it
    averages. n: the number of images, of a difference those of both sides. best: whether none in the column
    is better. digits: the decimals to show; None chooses. plus_minus: show the interval as its half length.
    """

    value: str | float | None
    interval: tuple[float, float] | None = None
    deviation: float | None = None
    n: int | tuple[int, int] | None = None
    best: bool = False
    digits: int | None = None
    plus_minus: bool = False


class Heading(NamedTuple):
    """A column's title, which is the metric or field that it shows, and whether it holds numbers.

    missing: what a terminal shows where a cell has no value. words: what people read in place of the title.
    share: whether its numbers are shares, which may be shown in percent.
    """

    title: str
    numeric: bool
    missing: str = ""
    words: str = ""
    share: bool = False

    @property
    def shown(self) -> str:
        """The column's heading for people."""
        return self.words or self.title


class Style(NamedTuple):
    """How a table for people looks: shares in percent, decimals, intervals as ±, and `labels` in place of
    titles and texts."""

    percent: bool = False
    digits: int | None = None
    plus_minus: bool = False
    labels: Mapping[str, str] = {}


PLAIN = Style()


@dataclass(frozen=True)
class Table:
    """Rows of cells under headings; `left_out` are metrics that did not fit. `averaged`: the least and the
    most records that a row averages.
    """

    headings: list[Heading]
    rows: list[list[TableCell]]
    left_out: list[str]
    averaged: tuple[int, int] | None = None

    @property
    def images(self) -> dict[str, list[int | tuple[int, int]]]:
        """The numbers of images behind the values of each column that has them, by its heading for people."""
        columns: dict[str, list[int | tuple[int, int]]] = {}
        for heading, *cells in zip(self.headings, *self.rows, strict=True):
            counts = {cell.n for cell in cells if cell.n is not None and cell.value is not None}
            if counts:
                columns[heading.shown] = sorted(counts, key=lambda n: n if isinstance(n, tuple) else (n, n))
        return columns


class Spread(NamedTuple):
    """The uncertainty of a metric: interval and deviation of its entry, and its number of images."""

    interval: tuple[float, float] | None = None
    deviation: float | None = None
    n: int | tuple[int, int] | None = None


def sides(n: int | tuple[int, int] | None) -> int | str | None:
    """A number of images as a cell; of a difference those of both sides, `100 + 200`."""
    return f"{n[0]} + {n[1]}" if isinstance(n, tuple) else n


Spreads = Mapping[str, Spread]
NO_SPREAD = Spread()


class _TableColumn(NamedTuple):
    heading: Heading
    cell: Callable[[Ranked, Spreads], TableCell]


def build(
    ranked: Sequence[Ranked],
    key: str,
    *,
    metrics: Sequence[str] | None = None,
    limit: int | None = None,
    fields: Sequence[str] | None = None,
    also: Sequence[str] = (),
    paired: Sequence[str] = (),
) -> Table:
    """The table: rank, name, dataset, method, seed, sort key, and other metrics.

    `key` is the metric or expression of the ranking. `metrics` names the others; without it all that the
    records have are shown, at most `limit` of them. Dataset, method and seed are left out if no record has
    one, seed also if all have the same. `fields` replace all these, with the number of merged records; `also`
    adds to them. `paired`: the metrics whose comparison with a reference is shown.
    """
    records = [entry.record for entry in ranked]
    others = choose_metrics(records, key, limit) if metrics is None else [m for m in metrics if m != key]
    columns = [_TableColumn(Heading("rank", True), lambda entry, _: TableCell(entry.rank))]
    columns += _identity(records) if fields is None else [*map(field_column, fields), RECORDS]
    titles = {column.heading.title for column in columns}
    columns += [column for column in map(field_column, also) if column.heading.title not in titles]
    columns += [*_marks(records), _key_column(key), *_compared_columns(key, records, paired)]
    for name in others:
        columns += [metric_column(name), *_compared_columns(name, records, paired)]
    columns += _class_columns(records)
    names = metric_names.names(records) if metrics is None else []
    return _table(columns, ranked, [name for name in names if name != key and name not in others])


def _table(columns: Sequence[_TableColumn], ranked: Sequence[Ranked], left_out: Sequence[str] = ()) -> Table:
    rows = []
    for entry in ranked:
        spreads = spreads_of(entry.record)
        rows.append([column.cell(entry, spreads) for column in columns])
    headings, records = [column.heading for column in columns], [entry.record for entry in ranked]
    return Table(headings, rows, [*left_out], _averaged(records))


def choose_metrics(records: Iterable[Record], key: str, limit: int | None = None) -> list[str]:
    """The metrics to show beside `key`, in the order in which the records have them.

    If there are more than `limit`, those of other splits and of single severities are left out first.
    """
    other_metrics = [name for name in metric_names.names(records) if name != key]
    chosen = set(sorted(other_metrics, key=is_detail)[:limit])
    return [name for name in other_metrics if name in chosen]


def is_detail(name: str) -> bool:
    """Whether a narrow table leaves this metric out before others."""
    parts = metric_names.parse(name)
    severity = parts.over == "severity" and not parts.prefixes
    return severity or parts.split != "test" or name.startswith("seconds")


def figure(value: float, digits: int | None = None) -> str:
    """A number as text: four decimals up to 1 (accuracies), else four digits; whole numbers without
    decimals. digits: the decimals of others."""
    if isinstance(value, int):
        return str(value)
    if digits is not None and (value == 0 or abs(value) >= 0.5 * 10**-digits):
        return f"{round(value, digits) + 0.0:.{digits}f}"
    if value == 0 or 5e-4 <= abs(value) <= 1:
        return f"{value + 0.0:.4f}"  # adding 0.0 turns -0.0 into 0.0
    return f"{value:.4g}"


def text(cell: TableCell) -> str:
    """A cell as text, `0.5315 [0.5217, 0.5413]` or `0.53 ± 0.01`; empty without a value."""
    if cell.value is None:
        return ""
    if isinstance(cell.value, str):
        return plain(cell.value)
    shown = figure(cell.value, cell.digits)
    half = cell.deviation
    if half is None and cell.interval is not None and cell.plus_minus:
        half = (cell.interval[1] - cell.interval[0]) / 2
    if half is not None:
        return f"{shown} ± {half:.{len(shown.partition('.')[2])}f}"
    if cell.interval is None:
        return shown
    low, high = (figure(end, cell.digits) for end in cell.interval)
    return f"{shown} [{low}, {high}]"


def plain(words: str) -> str:
    """Text on one line without control characters, which names in foreign records may have."""
    return words.translate(_CONTROL)


_CONTROL = {code: " " if chr(code).isspace() else "\ufffd" for code in [*range(32), *range(127, 160)]}
_CONTROL |= dict.fromkeys([0x2028, 0x2029], " ")
_CONTROL |= dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\ufffd")  # text direction


def _identity(records: list[Record]) -> list[_TableColumn]:
    columns = []
    for title, path in _IDENTITY.items():
        values = [value for record in records if (value := _at(record, path)) is not None]
        apart = ("seed", "checkpoint")  # shown only where they differ
        if title == "name" or any(title not in apart or value != values[0] for value in values):
            columns.append(_path_column(title, path, title == "seed"))
    return columns


_IDENTITY = {
    "name": ("arch", "name"),
    "dataset": ("dataset",),
    "method": ("train", "method"),
    "seed": ("train", "seed"),
    "checkpoint": ("checkpoint_file",),
}


def _path_column(title: str, path: tuple[str, ...], numeric: bool) -> _TableColumn:
    def cell(entry: Ranked, _: Spreads) -> TableCell:
        value = _at(entry.record, path)
        named = title == "dataset" and isinstance(value, str)
        return TableCell(short_dataset(str(value)) if named else _shown(value))

    return _TableColumn(Heading(title, numeric), cell)


def field_column(name: str) -> _TableColumn:
    """The column of a field, a metric or an expression that records were grouped by."""
    compiled = expr.compile(name)
    title = {path: title for title, path in _IDENTITY.items()}.get(tuple(name.split(".")), name)

    def cell(entry: Ranked, _: Spreads) -> TableCell:
        try:
            return TableCell(_shown(compiled(entry.record)))
        except RbError:
            return TableCell(None)

    return _TableColumn(Heading(title, title == "seed"), cell)


RECORDS = _TableColumn(
    Heading("records", True), lambda entry, _: TableCell(_shown(_at(entry.record, ("aggregated", "records"))))
)


def _shown(value: object) -> str | float | None:
    return value if value is None or is_number(value) else str(value)


def _marks(records: list[Record]) -> list[_TableColumn]:
    """Band, interval of ranks and Pareto front, if the ranking has them."""

    def ranks(entry: Ranked, _: Spreads) -> TableCell:
        ends = _ends(entry.record.get("rank_ci95"))
        return TableCell(None if ends is None else "–".join(map(str, dict.fromkeys(ends))))

    columns = []
    if any("band" in record for record in records):
        columns += [_path_column("band", ("band",), True), _TableColumn(Heading("ranks", False), ranks)]
    if any("pareto" in record for record in records):
        mark = Heading("front", False)
        columns.append(
            _TableColumn(mark, lambda entry, _: TableCell("*" if entry.record.get("pareto") else None))
        )
    return columns


def _ends(value: object) -> tuple[float, float] | None:
    """An interval of a record; None for a value of another kind."""
    if not isinstance(value, list | tuple) or len(value) != 2 or not all(map(is_number, value)):
        return None
    return value[0], value[1]


def _key_column(key: str) -> _TableColumn:
    def cell(entry: Ranked, spreads: Spreads) -> TableCell:
        spread = spreads.get(key, NO_SPREAD)
        ends = spread.interval or _ends(_at(entry.record, ("ranking", "ci95")))
        of_mean = _of_mean(compiled, entry.record)
        return TableCell(entry.value, ends or of_mean.interval, spread.deviation, spread.n or of_mean.n)

    compiled = _compiled(key)
    return _TableColumn(_metric_heading(key), cell)


def _compiled(name: str) -> expr.Expression | None:
    try:
        return expr.compile(name)
    except RbError:  # a metric may have any name
        return None


def _of_mean(compiled: expr.Expression | None, record: Record) -> Spread:
    """Interval and images of an expression that is a mean of metrics."""
    if compiled is None or not compiled.is_mean:
        return NO_SPREAD
    return Spread(means.interval(record, compiled), None, means.images(record, compiled))


def _metric_heading(name: str, suffix: str = "", **more: Any) -> Heading:
    share = metric_words.is_share(name) and suffix not in PAIRED.keys() - {" paired"}
    heading = Heading(f"{name}{suffix}", True, words=f"{metric_words.heading(name)}{suffix}", share=share)
    return heading._replace(**more)


def metric_column(name: str) -> _TableColumn:
    """The column of a metric, of an expression over metrics, or of a field."""
    compiled = _compiled(name)

    def cell(entry: Ranked, spreads: Spreads) -> TableCell:
        value = (entry.record.get("metrics") or {}).get(name)
        if value is None and compiled is not None:
            try:
                value = compiled(entry.record)
            except RbError:
                value = None
        if isinstance(value, str):
            return TableCell(value)
        spread = spreads.get(name) or _of_mean(compiled, entry.record)
        return TableCell(value, *spread) if is_number(value) else TableCell(None)

    return _TableColumn(_metric_heading(name), cell)


PUBLISHED = {" published": "value", " difference": "difference", " within": "within"}
"""The columns beside a metric, by the suffix of their names, and the fields that they show."""


def published_columns(name: str, records: Sequence[Record]) -> list[_TableColumn]:
    """The columns of published values of a metric; none where no record has one."""

    def column(title: str, field: str) -> _TableColumn:
        def cell(entry: Ranked, _: Spreads) -> TableCell:
            value = _at(entry.record, ("published", "metrics", name, field))
            if isinstance(value, bool):
                return TableCell("yes" if value else "no")
            return TableCell(value if is_number(value) else None)

        return _TableColumn(_metric_heading(name, title, numeric=field != "within", missing="–"), cell)

    compared = any(_at(record, ("published", "metrics", name, "value")) is not None for record in records)
    return [column(title, field) for title, field in PUBLISHED.items()] if compared else []


PAIRED = {" paired": "difference", " p": "p", " p_raw": "p_raw"}
"""The columns of a paired comparison beside a metric; the difference has its interval."""


def paired_columns(name: str, records: Sequence[Record]) -> list[_TableColumn]:
    """The columns of the comparison of a metric with a reference; none where no record has it."""
    path = ("paired", "metrics", name)

    def column(title: str, field: str) -> _TableColumn:
        def cell(entry: Ranked, _: Spreads) -> TableCell:
            value = _at(entry.record, (*path, field))
            ends = _ends(_at(entry.record, (*path, "ci95"))) if field == "difference" else None
            return TableCell(value, ends) if is_number(value) else TableCell(None)

        return _TableColumn(_metric_heading(name, title, missing="–"), cell)

    return [
        column(title, field)
        for title, field in PAIRED.items()
        if any(_at(record, (*path, field)) is not None for record in records)
    ]


def _compared_columns(name: str, records: Sequence[Record], paired: Sequence[str]) -> list[_TableColumn]:
    return [*(paired_columns(name, records) if name in paired else ()), *published_columns(name, records)]


def _class_columns(records: Sequence[Record]) -> list[_TableColumn]:
    """The worst class and its accuracy, and the accuracy of each class, if the ranking has them."""

    def column(title: str, label: str | None) -> _TableColumn:
        def cell(entry: Ranked, _: Spreads) -> TableCell:
            chosen = str(_at(entry.record, ("per_class", "worst"))) if label is None else label
            path = ("per_class", "classes", chosen)
            value = _at(entry.record, (*path, "value"))
            ends = _ends(_at(entry.record, (*path, "ci95")))
            return TableCell(value, ends) if is_number(value) else TableCell(None)

        return _TableColumn(Heading(title, True, missing="–", share=True), cell)

    classes = [_at(record, ("per_class", "classes")) for record in records]
    labels = dict.fromkeys(
        label for of_record in classes if isinstance(of_record, dict) for label in of_record
    )
    every = [column(f"class {label}", label) for label in labels]
    worst = _path_column("worst class", ("per_class", "worst"), True)
    return [worst, column("worst", None), *every] if every else []


def spreads_of(record: Record) -> dict[str, Spread]:
    """Interval, deviation and number of images of each metric that has one."""
    spreads = {}
    for entry in record.get("evals") or []:
        ends, std, n = _ends(entry.get("ci95")), entry.get("std"), entry.get("n")
        if isinstance(n, list) and len(n) == 2:
            n = n[0] if n[0] == n[1] else tuple(n)
        n = n if type(n) is int or (isinstance(n, tuple) and all(type(one) is int for one in n)) else None
        if ends or is_number(std) or n is not None:
            spreads[entry["metric"]] = Spread(ends, std if is_number(std) else None, n)
    return spreads


def styled(table: Table, style: Style) -> Table:
    """The table as people want it; texts that are paths are shown as the names of their files."""
    rows = [list(row) for row in table.rows]
    headings = list(table.headings)
    texts = {cell.value for row in rows for cell in row if isinstance(cell.value, str)}
    stems = _stems({text for text in texts if "/" in text and PurePath(text).suffix})
    labels = {**stems, **{text: style.labels[stem] for text, stem in stems.items() if stem in style.labels}}
    style = style._replace(labels={**labels, **style.labels})
    for place, heading in enumerate(headings):
        percent = style.percent and heading.share
        words = style.labels.get(heading.title, heading.shown)
        headings[place] = heading._replace(words=f"{words}{' [%]' * (percent and '%' not in words)}")
        exact = heading.title.endswith((" p", " p_raw"))  # a p-value keeps its digits
        for row in rows:
            row[place] = row[place] if exact else _styled(row[place], style, percent)
    return replace(table, headings=headings, rows=rows)


def _stems(paths: Iterable[str]) -> dict[str, str]:
    """Files by their stems, with as many folders in front as tell them apart."""
    names = {path: PurePath(path).with_suffix("") for path in paths}
    most = max((len(name.parts) for name in names.values()), default=1)
    for depth in range(1, most + 1):
        short = {path: "/".join(name.parts[-depth:]) for path, name in names.items()}
        if len({*short.values()}) == len(short):
            return short
    return {path: path for path in names}


def check_labels(tables: Iterable[Table], labels: Iterable[str]) -> None:
    """Raise UsageError for a label of nothing that is in these tables."""
    known: dict[str, None] = {}
    for table in tables:
        texts = [cell.value for row in table.rows for cell in row if isinstance(cell.value, str)]
        stems = _stems({text for text in texts if "/" in text and PurePath(text).suffix})
        known |= dict.fromkeys([*(heading.title for heading in table.headings), *texts, *stems.values()])
    for name in labels:
        if name not in known:
            raise UsageError(
                f"--label: no column and no cell is '{name}'.{near(name, known)} There are:"
                f" {expr.nearest(name, known)}."
            )


def _styled(cell: TableCell, style: Style, percent: bool) -> TableCell:
    if isinstance(cell.value, str):
        return cell._replace(value=style.labels.get(cell.value, cell.value))
    cell = cell._replace(digits=style.digits, plus_minus=style.plus_minus)
    if not percent or not is_number(cell.value):
        return cell
    ends = cell.interval and (100 * cell.interval[0], 100 * cell.interval[1])
    spread = cell.deviation and 100 * cell.deviation
    digits = 2 if style.digits is None else style.digits
    return cell._replace(value=100.0 * cell.value, interval=ends, deviation=spread, digits=digits)


def _at(record: Record, path: tuple[str, ...]) -> Any:
    value: Any = record
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def pivot(records: Sequence[Record], fields: Sequence[str], metrics: Sequence[str]) -> Table:
    """The table of a paper: a row for each record, named by its grouping fields, and a column per metric. If
    records were merged, a column has their number.
    """
    columns = [*map(field_column, fields)]
    if any((record.get("aggregated") or {}).get("records", 1) > 1 for record in records):
        columns.append(RECORDS)
    columns += map(metric_column, metrics)
    return _table(columns, [Ranked(None, None, record) for record in records])


def _averaged(records: Iterable[Record]) -> tuple[int, int] | None:
    """The least and the most records that one was merged from; None where none was merged."""
    counts = [(record.get("aggregated") or {}).get("records", 1) for record in records]
    usable_counts = [count for count in counts if type(count) is int and count > 1]
    return (min(usable_counts), max(usable_counts)) if usable_counts else None


def with_best(table: Table, metrics: Sequence[str]) -> Table:
    """The table with the best number of each of these columns marked; numbers that print equally are equally
    good."""
    rows = [list(row) for row in table.rows]
    for place, heading in enumerate(table.headings):
        if heading.title in metrics:
            _mark(rows, place, metric_names.higher_is_better(heading.title))
    return replace(table, rows=rows)


def _mark(rows: list[list[TableCell]], place: int, higher: bool) -> None:
    numbers = [row[place].value for row in rows if isinstance(row[place].value, int | float)]
    if len(numbers) < 2:
        return
    digits = next(cell.digits for row in rows if isinstance((cell := row[place]).value, int | float))
    best = figure(max(numbers) if higher else min(numbers), digits)  # type: ignore[type-var, arg-type]
    for row in rows:
        value = row[place].value
        if isinstance(value, int | float) and figure(value, digits) == best:
            row[place] = row[place]._replace(best=True)
