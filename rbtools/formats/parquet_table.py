"""Parquet: tables with typed columns."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.errors import RbError
from rbtools.formats.base import Broken
from rbtools.formats.tabular import Tabular, numbers_in

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True)
class ParquetTable(Tabular):
    """A Parquet table with the same columns as the csv format. Each row is a record, and each column is a
    metric or a field.

    Metrics and the ends of their intervals (METRIC.low, METRIC.high) are numbers, METRIC.n is an integer, and
    fields are strings. This format needs the extra "parquet".
    """

    name: ClassVar[str] = "parquet"

    def frame(self, content: bytes) -> pandas.DataFrame:
        import pandas

        try:
            with _pyarrow():
                frame = pandas.read_parquet(io.BytesIO(content), dtype_backend="numpy_nullable")
                if any(frame.index.names):
                    frame = frame.reset_index()
        except (ValueError, NotImplementedError, OSError) as wrong:
            raise Broken(f"is not a Parquet file: {' '.join(str(wrong).split())[:200]}") from None
        return frame.astype(object).map(lambda cell: "" if cell is None or cell is pandas.NA else str(cell))

    def file(self, frame: pandas.DataFrame) -> bytes:
        for name in frame:
            kind = numbers_in(name, frame)
            with contextlib.suppress(ValueError):  # a text that came from a table
                if kind is not None:
                    frame[name] = frame[name].astype(float).astype("Int64" if kind is int else float)
        return parquet_bytes(frame)


def parquet_bytes(frame: pandas.DataFrame) -> bytes:
    """A table, (rows, columns), as Parquet. Unknown values are null. Raises RbError."""
    held = io.BytesIO()
    with _pyarrow():
        frame.to_parquet(held, index=False)
    return held.getvalue()


@contextlib.contextmanager
def _pyarrow() -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise RbError("Parquet needs the package pyarrow. Run pip install 'rbtools[parquet]'.") from None
