"""Commands run in this process, as most tests do: records in, records out, and the messages."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner, Result

from rbtools.cli import tools
from rbtools.cli.declare import Tool
from rbtools.evaluation.spec import Evaluation
from rbtools.execution.run import Run
from rbtools.jobs.evaluate_record import EvaluateJob
from rbtools.store import Store

Record = dict[str, Any]


def run(
    tool: str | Tool, words: str | Sequence[str] = "", given: Sequence[Record] | str | bytes = ""
) -> Result:
    """`rb-TOOL WORDS` in this process, with records or a text on standard input."""
    command = tools.tool(tool).command
    text = given if isinstance(given, str | bytes) else lines(*given)
    return CliRunner().invoke(
        command, shlex.split(words) if isinstance(words, str) else list(words), input=text
    )


def command(tool: str, always: str = "") -> Callable[..., Result]:
    """A function of words and records: `rb-TOOL WORDS ALWAYS` with these records on standard input."""

    def typed(words: str, *given: Record) -> Result:
        return run(tool, f"{words} {always}", given)

    return typed


def in_a_process(
    tool: str, words: str | Sequence[str] = "", given: Sequence[Record] | str = ""
) -> tuple[str, str, set[str]]:
    """`rb-TOOL WORDS` in a process of its own: both its streams, and the modules that it imports.

    A failure (another status than 0) is a failed test.
    """
    command = [sys.executable, "-X", "importtime", "-m", tools.TOOLS[tool].partition(":")[0]]
    command += shlex.split(words) if isinstance(words, str) else words
    text = given if isinstance(given, str) else lines(*given)
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    timed, said = [], []
    for line in done.stderr.splitlines(keepends=True):
        (timed if line.startswith("import time:") else said).append(line)
    return done.stdout, "".join(said), {line.rsplit("|", 1)[1].strip() for line in timed}


def parsed(tool: str, *words: str) -> dict[str, Any]:
    """The values that `rb-TOOL WORDS` gets, by the names of its parameters; it is not run."""
    page, rest, context = tools.tool(tool), list(words), None
    command = page.command
    while True:
        context = command.make_context(page.words if context is None else rest.pop(0), rest, parent=context)
        if not isinstance(command, click.Group):
            return context.params
        rest = [*context._protected_args, *context.args]
        _, below, _ = command.resolve_command(context, rest)
        assert below is not None
        command = below


def lines(*records: Record) -> str:
    """The records as JSON Lines."""
    return "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)


def model(name: str = "a", *entries: Record, space: str = "zoo", **more: Any) -> Record:
    """A record of that architecture with these entries, and their values in `metrics`."""
    record: Record = {"schema": 1, "arch": {"space": space, "name": name}}
    if entries:
        record |= {"metrics": {e["metric"]: e["value"] for e in entries}, "evals": list(entries)}
    return record | more


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


def run_in(folder: Path | str = "rb-store", *, force: bool = False, **options: Any) -> Run:
    """A run on one thread of the processor, with that store."""
    options = {"tool": "rb-test", "device": "cpu", "threads": 1, **options}
    return Run.of(store=Store(folder, force=force), **options)


def timeless(value: Any, *costs: str) -> Any:
    """Records without their times and command lines, nor fields of these names, however deep they lie."""
    if isinstance(value, dict):
        kept = [key for key in value if not key.startswith("seconds") and key not in ("command", *costs)]
        return {key: timeless(value[key], *costs) for key in kept}
    if isinstance(value, list):
        timed = [one for one in value if isinstance(one, dict) and one.get("metric") == "seconds_per_epoch"]
        return [timeless(one, *costs) for one in value if one not in timed]
    return value


def run_task(record: Record, evaluation: Evaluation, run: Run) -> Record:
    """The record with the results of an evaluation."""
    return EvaluateJob((evaluation,))(record, run)
