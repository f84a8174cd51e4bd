"""CSV: tables as text, written so that spreadsheets do not read cells as formulas."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from rbtools.errors import RbError
from rbtools.formats.base import Broken
from rbtools.formats.tabular import Tabular, is_number, numbers_in
from rbtools.records import sheet_cells
from rbtools.registry import param

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True)
class CSV(Tabular):
    """A table with a header. Each row is a record, and each column is a metric or a field.

    A column named dataset, checkpoint, arch.NAME, train.NAME or record.PATH is that field of the record; any
    other column of numbers is a metric with the column's name. --map overrides this; --map 'COLUMN=-' leaves
    a column out. Numbers may have a percent sign, or be fractions such as 8/255; in 93.1 ± 0.2, the spread is
    ignored. The columns METRIC.n, METRIC.low and METRIC.high are the number of images and the 95 % interval
    of METRIC. All other strings are kept in the field "csv". An architecture is specified by arch.index or
    arch.str of NAS-Bench-201, or by arch.name.
    """

    name: ClassVar[str] = "csv"

    delimiter: str = param(",", "Character that separates cells, or tab.")
    decimal: str = param(".", "Decimal separator of numbers.", choices=(".", ","))
    raw: bool = param(
        False,
        "Write cells unchanged, for programs. Without --raw, text such as =x is quoted, for spreadsheets.",
    )

    def frame(self, content: bytes) -> pandas.DataFrame:
        import pandas

        separator, first = self._delimiter(), content.partition(b"\n")[0].decode("utf-8", "replace")
        if first.startswith('{"'):
            raise Broken("contains records. To write these as CSV, add --write FILE")
        others = [] if separator in first else [other for other in (",", ";", "\t", "|") if other in first]
        if others:
            spelled = "tab" if others[0] == "\t" else f"'{others[0]}'"
            raise Broken(f"has a header with {spelled} instead of '{separator}': give --delimiter {spelled}")
        kinds = {"dtype": str, "na_filter": False, "encoding": "utf-8-sig"}
        try:
            # The header is read as a row, because pandas would rename equal columns and make indices.
            frame = pandas.read_csv(io.BytesIO(content), header=None, sep=separator, **kinds)
        except pandas.errors.EmptyDataError:
            return pandas.DataFrame()
        except UnicodeDecodeError as wrong:
            raise Broken(f"is not UTF-8 (byte {wrong.start + 1})") from None
        except ValueError as wrong:
            raise Broken(f"is not CSV: {str(wrong).strip().rpartition('C error: ')[2]}") from None
        frame = frame if self.raw else frame.map(sheet_cells.of_cell)
        names, frame = list(frame.iloc[0]), frame[1:]
        return (frame.map(_with_point) if self.decimal == "," else frame).set_axis(names, axis=1)

    def file(self, frame: pandas.DataFrame) -> bytes:
        for name in frame if self.decimal == "," else ():
            if numbers_in(name, frame) is not None:
                frame[name] = frame[name].map(lambda cell: str(cell).replace(".", ","), na_action="ignore")
        return csv_bytes(frame, self._delimiter(), self.raw)

    def _delimiter(self) -> str:
        delimiter = "\t" if self.delimiter in ("tab", "\\t") else self.delimiter
        if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
            raise RbError(f"--delimiter is '{self.delimiter}'. Expected one ASCII character, or tab.")
        return delimiter


def _with_point(cell: str) -> str:
    """A cell with a decimal point, if it is a number with a decimal comma (and points between thousands)."""
    changed = cell.replace(".", "").replace(",", ".")
    return changed if "," in cell and is_number(changed) else cell


def csv_bytes(frame: pandas.DataFrame, delimiter: str = ",", raw: bool = False) -> bytes:
    """A table as CSV; unknown values are empty. Without `raw`, spreadsheets read no string as a formula."""
    if not raw:
        texts = frame.select_dtypes(exclude=["number", "bool"]).map(sheet_cells.cell, na_action="ignore")
        frame = frame.copy()
        frame[texts.columns] = texts
        frame = frame.rename(columns=sheet_cells.cell)
    write = partial(frame.to_csv, index=False, sep=delimiter, lineterminator="\n")
    text: str = write()
    return (write(quoting=csv.QUOTE_ALL) if "\r" in text else text).encode()  # "\r" alone may end a line
