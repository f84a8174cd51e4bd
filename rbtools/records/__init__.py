"""Records: a record describes one model and is one JSON object on one line.

`read` and `write` are the public functions for files; `parse` and `dumps` are for single lines.
"""
# ruff: noqa: F401

from __future__ import annotations

from rbtools.records.lines import (
    SCHEMA,
    BadLine,
    Line,
    can_be_retried,
    dumps,
    lines,
    parse,
    parse_again,
    read,
    write,
)
