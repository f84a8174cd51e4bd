"""Tables of results: each row is a record, and each column is a metric or a field."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rbtools.errors import RbError, near
from rbtools.formats import numbers
from rbtools.formats.base import RESULTS, Bad, Document, Published, Record, Unit, leaves, own_part
from rbtools.formats.conversion_report import ConversionReport
from rbtools.formats.naming import SIZES, dataset_name, described
from rbtools.formats.rows import DIFFERENCE, SHARE, MetricValues, PublishedRow, measured
from rbtools.records import metric_name, results
from rbtools.registry import Registry, param
from rbtools.spaces.zoo import FORMS

if TYPE_CHECKING:
    import pandas

FIELDS = ("dataset", "arch.", "train.", "checkpoint", "record.")  # how columns of fields begin, in order
TEXTS = ("dataset", "checkpoint", "arch.name", "arch.space", "arch.str", "train.method")
BESIDE = ("n", "low", "high")  # last words of columns next to a metric: its images, and its 95 % interval
# Metrics that are shares of images, by their first word, unless the last word is another quantity.
_ACCURACIES = frozenset("acc fgsm aa square fab fab-t corrupt pr probacc reported external".split())
_OTHER = ("loss", "lip", "mce", "relative_mce")
# Columns without a name, such as an index of pandas, and the names that pandas gives them.
_NAMELESS = re.compile(r"\s*|Unnamed: \d+|__index_level_\d+__")
_NOT_FINITE = re.compile(r"\s*[+-]?(nan|inf|infinity)\s*", re.I)


@lru_cache(maxsize=4096)
def _field(name: str) -> str | None:
    if name in ("dataset", "checkpoint") or name.startswith(("arch.", "train.")):
        return name
    return name.removeprefix("record.") if name.startswith("record.") else None


class Column(NamedTuple):
    """The meaning of a column: the name of a metric or the path of a field, and its unit."""

    name: str
    percent: bool = False
    given: bool = False  # whether the user gave it, and not the header

    @property
    def field(self) -> str | None:
        """The dotted path of a field in the record. Returns None for a metric."""
        return _field(self.name)

    @property
    def metric(self) -> str:
        return self.name.removeprefix("metrics.")


_column = lru_cache(maxsize=4096)(Column)  # the rows of a table have the same headers


@dataclass(frozen=True, kw_only=True)
class Tabular:
    """A unit is a row, which maps headers to cells; cells are strings (empty if missing)."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    one_file: ClassVar[bool] = True

    columns: str = param(
        "",
        "Meanings of columns, as a list of COLUMN=NAME, such as 'Model=arch.name,Clean=acc,Notes=-'.",
        name="map",
    )
    percents: str = param("", "Columns whose numbers are percentages, separated by commas.", name="percent")
    fields: str = param(
        "", "Fields to add to all records, as a list of NAME=VALUE, such as 'dataset=cifar10'.", name="set"
    )
    scale: str = param("fraction", "Unit of accuracies.", choices=numbers.SCALES)

    def frame(self, content: bytes) -> pandas.DataFrame:
        """The cells of a file, (rows, columns), as strings. Raises Broken."""
        raise NotImplementedError

    def file(self, frame: pandas.DataFrame) -> bytes:
        """The content of a file for a table of strings, (rows, columns), in which NaN is a missing value."""
        raise NotImplementedError

    def units(self, source: Published, report: ConversionReport) -> Iterator[Unit | Bad]:
        frame, mapped = self.frame(source.read()), self._mapped()
        header = [str(name).strip() for name in frame.columns]
        named = [name in mapped or not _NAMELESS.fullmatch(name) for name in header]
        if places := ", ".join(str(place) for place, one in enumerate(named, 1) if not one):
            report.note(f"columns without a name are left out (column {places})", source.name)
        frame = frame.loc[:, named].set_axis(list(itertools.compress(header, named)), axis=1)
        if not header:
            return
        self._check(list(frame.columns), mapped, source.name)
        for number, cells in enumerate(frame.to_dict("records"), 1):
            yield Unit(f"{source.name}: row {number}", cells)

    def _check(self, header: list[str], mapped: Mapping[str, Column], source: str) -> None:
        listed = ", ".join(header)
        if twice := [name for name in header if header.count(name) > 1]:
            raise RbError(f"{source} has the column '{twice[0]}' twice. Expected every column once.")
        for name in mapped:
            if name not in header:
                raise RbError(
                    f"--map or --percent names the column '{name}', which {source} does not"
                    f" have.{near(name, header)} Columns: {listed}."
                )
        columns = (mapped.get(name, Column(name)) for name in header)
        if "arch" not in self._constants() and not any(one.name.startswith("arch.") for one in columns):
            raise RbError(
                f"No column of {source} describes the architecture. Columns: {listed}. Name one, for example"
                f" with --map '{next(iter(header), 'NAME')}=arch.name'."
            )

    def record(self, unit: Mapping[str, str], report: ConversionReport, where: str) -> Record:
        row = PublishedRow("csv", report, where, percent=self.scale == "percent")
        record, mapped, texts = self._constants(), self._mapped(), {}
        columns = [
            (header, column, _field(column.name))
            for header in unit
            if (column := mapped.get(header) or _column(header)).name != "-"
        ]
        metrics = {
            header
            for header, column, field in columns
            if field is None and (column.given or not unit[header].strip() or is_number(unit[header]))
        }
        for header, column, field in columns:
            cell = unit[header]
            if field is not None:
                if cell:
                    _put(record, field, _typed(cell, column.name))
            elif header not in metrics:
                texts[header] = cell
                if numbers.COMMA.fullmatch(cell.strip()):
                    note = "kept as text; if the comma is a decimal separator, give --decimal ,"
                    report.note(note, f"{where}: {header}")
            elif cell.strip() and (column.given or not _beside(header, metrics)):
                self._read(row, column, unit, header)
        arch, dataset = record.pop("arch", None), record.pop("dataset", None)
        if not isinstance(arch, dict):
            raise RbError("The row has no architecture. Expected a name or a number in a column arch.NAME.")
        known = isinstance(dataset, str) and dataset_name(dataset) in SIZES
        ours = dataset_name(dataset) if known else dataset
        return row.record(_arch(arch, ours), **{"dataset": ours, **record, "csv": texts})

    def _read(self, row: PublishedRow, column: Column, unit: Mapping[str, str], header: str) -> None:
        metric, limits = column.metric, _limits(column.metric, Registry.changes)
        percent = column.percent or (limits is not None and row.percent)
        n, low, high = (unit.get(f"{header}.{word}", "") for word in BESIDE)
        beside: Record = {}
        if (count := _number(n)) is not None and count == int(count):
            beside["n"] = int(count)
        ends = [_number(low, percent), _number(high, percent)]
        if None not in ends:
            beside["ci95"] = ends
        row.add(metric, unit[header], percent, limits=limits, **beside)
        if any(sign in unit[header] for sign in ("±", "+-", "+/-", "\\pm")):
            row.report.note("the spread after ± is ignored", row.where)

    def unit(self, record: Record) -> Any:
        mapped, constants, cells = self._mapped(), self._constants(), {}
        back = {column.name: header for header, column in mapped.items()}
        values = MetricValues(record, percent=self.scale == "percent")
        fields = {key: value for key, value in record.items() if key not in (*RESULTS, "csv")}
        for path, value in leaves(fields):
            name = path if _field(path) == path else f"record.{path}"
            if not constants or results.at(constants, path.split(".")) != value:
                cells[back.get(name, name)] = _written(value, name)
        for metric in values.metrics:
            own = Column(metric).field or metric.startswith("metrics.") or _beside(metric, values.metrics)
            name = f"metrics.{metric}" if own else metric
            header = back.get(name, name)
            shares = values.percent and _limits(metric, Registry.changes) is not None
            percent = mapped.get(header, Column(name)).percent or shares
            if (number := values.value(metric, percent)) is not None:
                cells[header] = str(number)
                for word, value in measured(values.entries.get(metric) or {}).items():
                    scaled = numbers.printed(value, percent=percent and word != "n")
                    cells[f"{header}.{word}"] = str(scaled)
        return cells | {key: str(value) for key, value in own_part(record.get("csv")).items()}

    def documents(self, units: Iterable[Unit], report: ConversionReport) -> Iterator[Document]:
        yield Document("", self.file(_frame([unit.content for unit in units])))

    def table(self, records: Iterable[Record]) -> pandas.DataFrame:
        """One row for each record. A column contains numbers if all its cells are numbers, else strings."""
        import pandas

        frame = _frame([self.unit(record) for record in records])
        for name in frame:
            with contextlib.suppress(ValueError, TypeError):
                frame[name] = pandas.to_numeric(frame[name])
        return frame

    def _mapped(self) -> dict[str, Column]:
        columns = {}
        for header, name in _pairs(self.columns, "--map", "Clean=acc"):
            bare, _, unit = name.rpartition(":")
            if bare and unit in numbers.SCALES:
                right = f"--map '{header}={bare}'" + f" --percent '{header}'" * (unit == "percent")
                raise RbError(f"--map {header}={name}: the name contains a unit. Write {right}.")
            columns[header] = Column(name, given=True)
        for header in filter(None, map(str.strip, next(csv.reader([self.percents]), []))):
            columns[header] = columns.get(header, Column(header))._replace(percent=True, given=True)
        return columns

    def _constants(self) -> Record:
        record: Record = {}
        for name, value in _pairs(self.fields, "--set", "dataset=cifar10"):
            path = Column(name).field
            if path is None:
                raise RbError(
                    f"--set {name}: this is not a field. Expected dataset, checkpoint, arch.NAME, train.NAME"
                    " or record.PATH."
                )
            _put(record, path, _typed(value, name))
        return record


def _frame(rows: list[dict[str, str]]) -> pandas.DataFrame:
    import pandas

    return pandas.DataFrame(rows, columns=_header(rows), dtype=object)


def _pairs(text: str, option: str, example: str) -> Iterator[tuple[str, str]]:
    for part in next(csv.reader([text], skipinitialspace=True), []):
        name, equals, value = part.rpartition("=")
        if not part.strip():
            continue
        if not equals or not name.strip() or not value.strip():
            raise RbError(f"{option} contains '{part}'. Expected NAME=VALUE, such as {example}.")
        yield name.strip(), value.strip()


def numbers_in(header: str, headers: Collection[str]) -> type[int] | type[float] | None:
    """The type of a column's numbers. Returns None for a field, which is a string."""
    if Column(header).field is not None:
        return None
    return int if header.endswith(".n") and _beside(header, headers) else float


def _beside(header: str, headers: Collection[str]) -> bool:
    """Whether a column contains n, low or high of a metric that also has a column."""
    metric, _, word = header.rpartition(".")
    return word in BESIDE and metric in headers and Column(metric).field is None


def _header(rows: list[dict[str, str]]) -> list[str]:
    places = {name: place for place, name in enumerate(dict.fromkeys(itertools.chain.from_iterable(rows)))}

    def key(name: str) -> tuple[int, int, int]:
        group = next((at for at, start in enumerate(FIELDS) if name.startswith(start)), len(FIELDS))
        if not _beside(name, places):
            return group, places[name], 0
        metric, _, word = name.rpartition(".")
        return group, places[metric], 1 + BESIDE.index(word)

    return sorted(places, key=key)


def _number(cell: str, percent: bool = False) -> float | int | None:
    try:
        got = numbers.number(cell, percent=percent)
    except numbers.NoNumber:
        return None
    return None if got is None else got.value


def is_number(cell: str) -> bool:
    return _number(cell) is not None or _NOT_FINITE.fullmatch(cell) is not None


@lru_cache(maxsize=4096)
def _limits(metric: str, changes: int) -> tuple[float, float] | None:
    """The limits of a share of images, or of a difference of shares; None for any other metric. `changes` is
    explained in `metric_name`."""
    plain = metric_name.without_split(metric)
    parts = metric_name.parse(plain)
    if parts.last in _OTHER and parts.last != plain:
        return None
    first = parts.words[0]
    with_steps = first.rstrip("0123456789") in ("pgd", "cw")
    if parts.is_ge:
        return DIFFERENCE
    return SHARE if first in _ACCURACIES or with_steps or first.startswith("apgd-") else None


def _typed(cell: str, name: str) -> Any:
    """The value of a cell: JSON if it can be parsed, otherwise a string."""
    if name in TEXTS or not cell.startswith(_JSON):
        return cell
    with contextlib.suppress(ValueError, RecursionError):
        return _READER.decode(cell)
    return cell


def _finite(text: str) -> float:
    if abs(value := float(text)) == float("inf"):
        raise ValueError(text)
    return value


_JSON = tuple(' \t\n\r"{[-0123456789tfnNI')  # how a JSON value, NaN or Infinity begins
# json.loads and json.dumps make these anew for every cell.
_READER = json.JSONDecoder(parse_constant=str, parse_float=_finite)
_WRITER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _written(value: object, name: str) -> str:
    if isinstance(value, str) and (name in TEXTS or _typed(value, name) == value) and value:
        return value
    return str(value) if type(value) is int else _WRITER.encode(value)


def _put(record: Record, path: str, value: object) -> None:
    *above, last = path.split(".")
    for key in above:
        inner = record.setdefault(key, {})
        if not isinstance(inner, dict):
            raise RbError(f"The column '{path}' is part of '{key}', but that column has its own value.")
        record = inner
    record[last] = value


def _arch(arch: Record, dataset: object) -> Record:
    """The architecture with its description; values from columns replace those of the description."""
    arch = dict(arch)
    if "space" not in arch:
        name = str(arch.get("name"))
        if "str" in arch or "index" in arch or name.startswith("nb201-"):
            arch["space"] = "nasbench201"
        else:
            arch["space"] = "zoo" if name in FORMS else "csv"
    return described(arch, dataset if isinstance(dataset, str) else None) | arch
