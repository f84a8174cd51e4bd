"""Conversion between published result files and records. To add a format, write one file and add one line
here. A format splits published files into units, each of which becomes one record (`units`). A format
converts a unit to a record (`record`), converts a record to a unit (`unit`), and writes units as files
(`documents`). A file is always read completely. Formats do not open files for writing.
"""

from __future__ import annotations

from rbtools.formats.base import Bad, Broken, Document, Format, Published, Unit  # noqa: F401
from rbtools.formats.conversion_report import ConversionReport  # noqa: F401
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
