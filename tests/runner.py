"""Commands run in this process, as most tests do: records in, records out, and what was said beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click
from click.testing import CliRunner, Result

Record = dict[str, Any]


def invoke(command: click.Command, arguments: Sequence[str], *records: Record) -> Result:
    """The command with these arguments, and these records on standard input."""
    text = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
    return CliRunner().invoke(command, list(arguments), input=text)


def records(result: Result) -> list[Record]:
    """The records on standard output."""
    return [json.loads(line) for line in result.stdout.splitlines()]


def one(result: Result) -> Record:
    """The one record that a command wrote; it ended with status 0."""
    assert result.exit_code == 0, result.stderr
    (record,) = records(result)
    return record


def entry(record: Record, metric: str) -> Record:
    """The one entry of a record's `evals` that has this metric."""
    (entry,) = [entry for entry in record["evals"] if entry["metric"] == metric]
    return entry
