"""Conversion between published result files and records. Each format has one file, and one line here. A
format splits published files into units, one per record (`units`), converts a unit to a record (`record`) and
a record to a unit (`unit`), and writes units as files (`documents`). A file is read as a whole. Formats do
not open files for writing; `cli` does.
"""

from __future__ import annotations

from rbtools.formats.base import Bad, Broken, Document, Format, Published, Unit
from rbtools.formats.conversion_report import ConversionReport
from rbtools.registry import Registry

FORMATS = Registry(
    "format",
    {
        "hub": "rbtools.formats.hub:Hub",
        "mlflow": "rbtools.formats.mlflow:MLflow",
        "parquet": "rbtools.formats.parquet_table:ParquetTable",
        "csv": "rbtools.formats.csv:CSV",
    },
    group="formats",
    last=("hub", "mlflow", "parquet", "csv"),
    closed=True,
)

__all__ = ["FORMATS", "Bad", "Broken", "ConversionReport", "Document", "Format", "Published", "Unit"]
