"""Published result files as records, and records as such files. One file a format, one line here.

A format takes what was published apart into units, one a record (`units`), makes a record of a unit
(`record`) and a unit of a record (`unit`), and puts units together again (`documents`). Reading streams
where the layout allows; writing needs all records. No format opens a file for writing: `cli` does that.
"""

from __future__ import annotations

from rbtools.formats.base import Bad, Document, Format, Published, Unit
from rbtools.formats.conversion_report import ConversionReport
from rbtools.formats.stream import Broken
from rbtools.registry import Registry

FORMATS = Registry(
    "format",
    {
        "prbench": "rbtools.formats.prbench:PRBench",
        "robustbench": "rbtools.formats.robustbench:RobustBench",
        "jung2023": "rbtools.formats.jung2023:Jung2023",
        "nasrobbench201": "rbtools.formats.nasrobbench201:NASRobBench201",
        "nares": "rbtools.formats.nares:NARes",
        "csv": "rbtools.formats.csv:CSV",
    },
)

__all__ = ["FORMATS", "Bad", "Broken", "ConversionReport", "Document", "Format", "Published", "Unit"]
