"""CSV tables: reads any columns, writes fields and metrics of records as columns."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from rbtools.errors import RbError, near
from rbtools.formats import numbers
from rbtools.formats.base import Bad, Document, Published, Record, Unit, own_part
from rbtools.formats.conversion_report import ConversionReport
from rbtools.formats.naming import SIZES, dataset_name, described
from rbtools.formats.rows import MetricValues, PublishedRow
from rbtools.formats.stream import Broken
from rbtools.records import metric_name, sheet_cells
from rbtools.registry import param
from rbtools.spaces.zoo import FORMS

FIELDS = ("dataset", "checkpoint")
PREFIXES = ("arch.", "train.", "record.", "metrics.")
TEXTS = ("dataset", "checkpoint", "arch.name", "arch.space", "arch.str", "train.method")
IGNORED = "-"
BESIDE = ("n", "low", "high")  # last words of columns beside a metric: its images, and its 95 % interval
# Metrics that are shares of images, by their first word, unless the last word is another quantity.
_ACCURACIES = frozenset("acc fgsm aa square fab fab-t corrupt pr probacc reported external".split())
_OTHER = ("loss", "lip", "mce", "relative_mce")
# Columns without a name, such as the index that pandas writes, and the names that pandas gives them.
_NAMELESS = re.compile(r"\s*|Unnamed: \d+|__index_level_\d+__")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.I)


class CsvColumn(NamedTuple):
    """The meaning of a column: the name of a metric or the path of a field, and its unit."""

    name: str
    percent: bool = False
    given: bool = False  # whether the user named it, not the header

    @property
    def field(self) -> str | None:
        """The dotted path in the record; None for a metric."""
        if self.name in FIELDS or self.name.startswith(("arch.", "train.")):
            return self.name
        return self.name.removeprefix("record.") if self.name.startswith("record.") else None

    @property
    def metric(self) -> str:
        return self.name.removeprefix("metrics.")


@dataclass(frozen=True, kw_only=True)
class CSV:
    """A table with a header: a row is a record, a column a metric or a field.

    A column named dataset, checkpoint, arch.NAME, train.NAME or record.PATH is that field, any other one with
    numbers is a metric of that name; --map overrides that, --map '-' leaves a column out. Numbers may have a
    percent sign, or be fractions such as 8/255. METRIC.n, METRIC.low and METRIC.high beside METRIC are its
    number of images and its 95 % interval. Texts that are neither are kept under "csv". An architecture
    is arch.index or arch.str of NAS-Bench-201, or arch.name. Reads row by row.
    """

    name: ClassVar[str] = "csv"
    version: ClassVar[int] = 1
    one_file: ClassVar[bool] = True

    columns: str = param(
        "",
        "Meaning of columns, COLUMN=NAME with commas: 'Model=arch.name,Clean=acc:percent,Notes=-'.",
        name="map",
    )
    fields: str = param("", "Fields of all records, NAME=VALUE with commas: 'dataset=cifar10'.", name="set")
    scale: str = param("fraction", "Unit of accuracies.", choices=numbers.SCALES)
    delimiter: str = param(",", "Separator of cells: one character, or tab.")
    raw: bool = param(
        False, "Cells as they are, for programs; else texts such as =x are quoted for spreadsheets."
    )

    def units(self, source: Published, report: ConversionReport) -> Iterator[Unit | Bad]:
        mapped, constants = self._mapped(), self._constants()
        with source.opened() as opened:
            text = io.TextIOWrapper(opened, "utf-8-sig", newline="")
            try:
                reader = csv.reader(text, delimiter=self._delimiter(), strict=True)
                header = [self._text(name.strip()) for name in next(reader, [])]
                columns = _columns(header, mapped, source.name)
                named = "arch" in constants or any(one.name.startswith("arch.") for one in columns)
                if header and not named:
                    listed = (name or f"(number {at} has no name)" for at, name in enumerate(header, 1))
                    raise RbError(
                        f"No column of {source.name} says what the architecture is. Columns:"
                        f" {', '.join(listed)}."
                        f" Name one: --map '{next(filter(None, header), 'NAME')}=arch.name'; one without a"
                        " name needs one in the file's first line."
                    )
                for row in reader:
                    where = f"{source.name}: line {reader.line_num}"
                    if len(row) != len(header):
                        if any(cell.strip() for cell in row):
                            problem = f"It has {len(row)} cells, and the header {len(header)}."
                            yield Bad(where, problem, self._delimiter().join(row))
                        continue
                    yield Unit(where, dict(zip(header, map(self._text, row), strict=True)))
            except UnicodeDecodeError:
                good = f"after line {reader.line_num}" if reader.line_num else "in its first line"
                raise Broken(f"is not UTF-8 {good}") from None
            except csv.Error as wrong:
                raise Broken(f"is no CSV in line {reader.line_num}: {wrong}") from None
            finally:
                text.detach()

    def record(self, unit: Mapping[str, str], report: ConversionReport, where: str) -> Record:
        row, record = PublishedRow("csv", report, where, percent=self.scale == "percent"), self._constants()
        texts: dict[str, str] = {}
        mapped = self._mapped()
        for header, cell in unit.items():
            column = mapped.get(header, CsvColumn(header))
            if header not in mapped and _NAMELESS.fullmatch(header):
                named = header.strip() and f" (it is called '{header}')"
                report.note(
                    f"column {list(unit).index(header) + 1} has no name{named} and is left out", where
                )
                continue
            if header not in mapped and _is_read_beside(header, unit, mapped):
                continue  # `_metric` of the column before the last dot reads it
            if column.name == IGNORED or (column.field is None and not cell.strip()):
                continue
            if column.field is not None:
                if cell != "":
                    _put(record, column.field, _typed(cell, column.name))
            elif column.given or _is_number(cell):
                self._metric(row, column, cell, _measured(unit, header))
            else:
                texts[header] = cell
        arch = record.pop("arch", None)
        if not isinstance(arch, dict):
            raise RbError("The row's architecture is empty. Expected a text or number in a column arch.NAME.")
        dataset = record.pop("dataset", None)
        known = isinstance(dataset, str) and dataset_name(dataset) in SIZES
        ours = dataset_name(dataset) if known else dataset
        return row.record(_arch(arch, ours), **{"dataset": ours, **record, "csv": texts})

    def _metric(self, row: PublishedRow, column: CsvColumn, cell: str, texts: Mapping[str, str]) -> None:
        in_scale = _in_scale(column.metric)
        percent = column.percent or (in_scale and row.percent)
        measured = _numbers(texts, percent)
        if in_scale:
            difference = metric_name.parse(metric_name.without_split(column.metric)).is_ge
            (row.difference if difference else row.accuracy)(column.metric, cell, percent, **measured)
        elif column.percent:
            row.ratio(column.metric, cell, True, **measured)
        else:
            row.plain(column.metric, cell, **measured)

    def unit(self, record: Record) -> Any:
        back = {one.name: (header, one) for header, one in self._mapped().items()}
        values = MetricValues(record, percent=False)
        constants = self._constants()
        cells: dict[str, str] = {}
        results = ("metrics", "evals", "checksums", "schema", "csv")
        fields = {key: value for key, value in record.items() if key not in results}
        for path, value in _leaves(fields):
            name = path if path in FIELDS or path.startswith(("arch.", "train.")) else f"record.{path}"
            if _got(constants, path) != value:
                cells[back[name][0] if name in back else name] = _written(value, name)
        for metric in values.metrics:
            plain = not (is_field(metric) or metric.startswith("metrics.") or beside(metric, values.metrics))
            name = metric if plain else f"metrics.{metric}"
            header, column = back.get(name, (name, CsvColumn(name)))
            percent = column.percent or (self.scale == "percent" and _in_scale(metric))
            number = MetricValues(record, percent=percent).scaled(metric)
            if number is not None:
                cells[header] = str(number)
                for word, beside_it in _beside_of(values.entries.get(metric) or {}, percent):
                    cells[f"{header}.{word}"] = beside_it
        return cells | {key: str(value) for key, value in own_part(record.get("csv")).items()}

    def documents(self, units: Iterable[Unit], report: ConversionReport) -> Iterator[Document]:
        rows = [unit.content for unit in units]
        yield Document(
            "", _lines(header_of(rows), rows, self._delimiter(), str if self.raw else sheet_cells.cell)
        )

    def _text(self, cell: str) -> str:
        return cell if self.raw else sheet_cells.of_cell(cell)

    def _delimiter(self) -> str:
        delimiter = "\t" if self.delimiter in ("tab", "\\t") else self.delimiter
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise RbError(f"--delimiter is '{self.delimiter}'. Expected one character, or tab.")
        return delimiter

    def _mapped(self) -> dict[str, CsvColumn]:
        columns = {}
        for header, text in _pairs(self.columns, "--map", "'Clean=acc:percent'"):
            name, colon, unit = text.rpartition(":")
            if colon and unit not in numbers.SCALES:
                raise RbError(f"--map {header}={text}: '{unit}' is no unit. Expected percent or fraction.")
            columns[header] = CsvColumn(name if colon else text, unit == "percent", True)
        return columns

    def _constants(self) -> Record:
        record: Record = {}
        for name, value in _pairs(self.fields, "--set", "dataset=cifar10"):
            path = CsvColumn(name).field
            if path is None:
                raise RbError(
                    f"--set {name}: that is no field. Expected dataset, checkpoint, arch.NAME, train.NAME or"
                    " record.PATH."
                )
            _put(record, path, _typed(value, name))
        return record


def is_field(header: str) -> bool:
    """Whether a column is a field of the record by its name."""
    return CsvColumn(header).field is not None


def beside(header: str, headers: Collection[str]) -> str | None:
    """ "n", "low" or "high", if the column is that of a metric that has a column as well."""
    metric, _, word = header.rpartition(".")
    fits = word in BESIDE and metric in headers and not is_field(metric)
    return word if fits else None


def _is_read_beside(header: str, unit: Mapping[str, str], mapped: Mapping[str, CsvColumn]) -> bool:
    """Whether a cell is a number, or none, beside a metric that is read."""
    if beside(header, unit) is None or not _is_number(unit[header] or "0"):
        return False
    metric = header.rpartition(".")[0]
    column = mapped.get(metric, CsvColumn(metric))
    read = column.field is None and column.name != IGNORED
    return read and (column.given or not unit[metric].strip() or _is_number(unit[metric]))


def header_of(rows: Iterable[Mapping[str, str]]) -> list[str]:
    """The columns of rows: fields, then each metric with what is beside it."""
    met = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    groups = ("dataset", "arch.", "train.", "checkpoint", "record.")
    header = [name for start in groups for name in met if name.startswith(start)]
    there = set(met)
    for name in met:
        if not name.startswith(groups) and beside(name, there) is None:
            header.append(name)
            extra = [f"{name}.{word}" for word in BESIDE]
            header += [one for one in extra if one in there and beside(one, there)]
    return header


def _measured(unit: Mapping[str, str], header: str) -> dict[str, str]:
    """The cells beside a metric's."""
    found = {word: unit.get(f"{header}.{word}", "") for word in BESIDE}
    return {word: cell for word, cell in found.items() if cell.strip() and _is_number(cell)}


def _numbers(texts: Mapping[str, str], percent: bool) -> dict[str, Any]:
    """n and ci95 of an entry, from the cells beside its metric."""
    read: dict[str, Any] = {}
    with contextlib.suppress(numbers.NoNumber):
        n = numbers.number(texts.get("n", ""))
        read |= {} if n is None or n.value != int(n.value) else {"n": int(n.value)}
        ends = [numbers.number(texts.get(word, ""), percent=percent) for word in ("low", "high")]
        found = [end.value for end in ends if end is not None]
        read |= {"ci95": found} if len(found) == 2 else {}
    return read


def _beside_of(entry: Mapping[str, Any], percent: bool) -> Iterator[tuple[str, str]]:
    """The cells beside a metric's: (n, low or high, cell)."""
    if type(n := entry.get("n")) is int:
        yield "n", str(n)
    ends = entry.get("ci95")
    if isinstance(ends, list) and len(ends) == 2 and all(type(end) in (int, float) for end in ends):
        for word, end in zip(("low", "high"), ends, strict=True):
            yield word, str(numbers.printed(end, percent=percent))


def _pairs(text: str, option: str, example: str) -> Iterator[tuple[str, str]]:
    for part in next(csv.reader([text], skipinitialspace=True), []):
        name, equals, value = part.rpartition("=")
        if not part.strip():
            continue
        if not equals or not name.strip() or not value.strip():
            raise RbError(f"{option} has '{part}'. Expected NAME=VALUE, such as {example}.")
        yield name.strip(), value.strip()


def _columns(header: list[str], mapped: Mapping[str, CsvColumn], source: str) -> list[CsvColumn]:
    twice = next((name for name in header if name and header.count(name) > 1), None)
    if twice is not None:
        raise RbError(f"{source} has the column '{twice}' twice. Expected every column once.")
    unknown = next((name for name in mapped if name not in header), None)
    if unknown is not None and header:
        raise RbError(
            f"--map names the column '{unknown}', which {source} does not have.{near(unknown, header)}"
            f" Columns: {', '.join(header)}."
        )
    return [mapped.get(name, CsvColumn(name)) for name in header]


def _is_number(cell: str) -> bool:
    with contextlib.suppress(numbers.NoNumber):
        return _NOT_FINITE.fullmatch(cell.strip()) is not None or numbers.number(cell) is not None
    return False


def _in_scale(metric: str) -> bool:
    plain = metric_name.without_split(metric)
    parts = metric_name.parse(plain)
    if parts.last in _OTHER and parts.last != plain:
        return False
    first = parts.words[0]
    with_steps = first.rstrip("0123456789") in ("pgd", "cw")
    return parts.is_ge or first in _ACCURACIES or with_steps or first.startswith("apgd-")


# --- fields -----------------------------------------------------------------------------------------


def _typed(cell: str, name: str) -> Any:
    """A cell as a value: JSON where it parses, else a text."""
    if name in TEXTS:
        return cell
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(cell, parse_constant=str, parse_float=_finite)
    return cell


def _finite(text: str) -> float:
    if abs(value := float(text)) == float("inf"):
        raise ValueError(text)
    return value


def _written(value: object, name: str) -> str:
    if isinstance(value, str) and (name in TEXTS or _typed(value, name) == value) and value:
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _leaves(value: Record, above: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, dict) and item:
            yield from _leaves(item, f"{above}{key}.")
        elif item is not None:
            yield f"{above}{key}", item


def _put(record: Record, path: str, value: object) -> None:
    *above, last = path.split(".")
    for key in above:
        inner = record.setdefault(key, {})
        if not isinstance(inner, dict):
            raise RbError(f"The column '{path}' lies inside '{key}', which is another column with a value.")
        record = inner
    record[last] = value


def _got(record: object, path: str) -> Any:
    for key in path.split("."):
        record = record.get(key) if isinstance(record, dict) else None
    return record


def _arch(arch: Record, dataset: object) -> Record:
    """The architecture with the description of its space; values from columns take precedence."""
    arch = dict(arch)
    dataset = dataset if isinstance(dataset, str) else None
    if "space" not in arch:
        name = str(arch.get("name"))
        if "str" in arch or "index" in arch or name.startswith("nb201-"):
            arch["space"] = "nasbench201"
        else:
            arch["space"] = "zoo" if name in FORMS else "csv"
    return described(arch, dataset) | arch


# --- writing ----------------------------------------------------------------------------------------


def _lines(
    header: list[str], rows: list[dict[str, str]], delimiter: str, as_cell: Callable[[str], str]
) -> Iterator[bytes]:
    held = io.StringIO()
    writer = csv.writer(held, delimiter=delimiter, lineterminator="\n")
    for row in itertools.chain([dict(zip(header, header, strict=True))], rows):
        writer.writerow([as_cell(row.get(name, "")) for name in header])
        yield held.getvalue().encode()
        held.seek(0)
        held.truncate()
