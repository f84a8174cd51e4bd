"""Parquet tables: the columns of CSV, with types."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rbtools.errors import RbError
from rbtools.formats import csv
from rbtools.formats.base import Bad, Document, Published, Record, Unit
from rbtools.formats.conversion_report import ConversionReport
from rbtools.formats.stream import Broken

_CELLS = csv.CSV(raw=True)


@dataclass(frozen=True, kw_only=True)
class ParquetTable:
    """A Parquet table with the columns of csv: a row is a record, a column a metric or a field.

    Metrics and the ends of their intervals (METRIC.low, METRIC.high) are numbers, METRIC.n is a whole number,
    fields are texts. Needs the extra "parquet".
    """

    name: ClassVar[str] = "parquet"
    version: ClassVar[int] = 1
    one_file: ClassVar[bool] = True

    def units(self, source: Published, report: ConversionReport) -> Iterator[Unit | Bad]:
        pyarrow, parquet = _pyarrow()
        with source.opened() as stream:
            try:
                file = parquet.ParquetFile(io.BytesIO(stream.read()))
                for at, row in enumerate(_rows(file), 1):
                    cells = {name: _cell(value) for name, value in row.items() if value is not None}
                    yield Unit(f"{source.name}: row {at}", cells)
            except (pyarrow.ArrowException, OSError) as wrong:
                raise Broken(f"is no Parquet file: {' '.join(str(wrong).split())[:200]}") from None

    def record(self, unit: Mapping[str, str], report: ConversionReport, where: str) -> Record:
        return _CELLS.record(unit, report, where)

    def unit(self, record: Record) -> Any:
        return _CELLS.unit(record)

    def documents(self, units: Iterable[Unit], report: ConversionReport) -> Iterator[Document]:
        pyarrow, parquet = _pyarrow()
        rows = [unit.content for unit in units]
        header = csv.header_of(rows)
        table = {}
        for name in header:
            cells = [row.get(name) for row in rows]
            table[name] = pyarrow.array(*_typed(name, cells, header, pyarrow))
        held = io.BytesIO()
        parquet.write_table(pyarrow.table(table), held)
        yield Document("", [held.getvalue()])


def _typed(name: str, cells: list[str | None], header: list[str], pyarrow: Any) -> tuple[list[Any], Any]:
    """The values of a column and their type: numbers for metrics and what is beside them."""
    if csv.is_field(name):
        return cells, pyarrow.string()
    whole = csv.beside(name, header) == "n"
    try:
        values = [None if cell is None else (int if whole else float)(cell) for cell in cells]
    except ValueError:  # a text that came from a table
        return cells, pyarrow.string()
    return values, pyarrow.int64() if whole else pyarrow.float64()


def _rows(file: Any) -> Iterator[dict[str, Any]]:
    for batch in file.iter_batches():
        yield from batch.to_pylist()


def _cell(value: Any) -> str:
    return repr(value) if type(value) is float else str(value)


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise RbError("parquet needs the package pyarrow. Run pip install 'rbtools[parquet]'.") from None
    return pyarrow, parquet
