"""What every command shares, in one place: options, the filter loop, and how a method is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rbtools import edge
from rbtools.cli.commands import DONE, FAILED
from rbtools.cli.options import (
    both_splits_options,
    bundle,
    command,
    eps_option,
    group,
    run_options,
    screen_options,
    source_options,
    store_option,
    stream_options,
    train_options,
)
from rbtools.cli.screen import Screen
from rbtools.cli.source import Source, bad_line_record, file_path, opened_output, read_all
from rbtools.edge import build
from rbtools.errors import RbError, UsageError

__all__ = [
    "DONE",
    "FAILED",
    "Screen",
    "Source",
    "bad_line_record",
    "both_splits_options",
    "build",
    "bundle",
    "command",
    "distances",
    "eps_option",
    "evaluate",
    "filter_models",
    "filter_records",
    "group",
    "opened_output",
    "read_all",
    "run_options",
    "screen_options",
    "source_options",
    "store_option",
    "stream_options",
    "train_options",
]


def distances(text: str, norm: str, screen: Screen) -> tuple[float, ...]:
    """`--eps` in pixel units, with a warning for what looks like a slip of unit."""
    return edge.distances(text, norm, screen.warn)


def filter_records(source: Source, works: Sequence[Any], work: Any, start: Any = None) -> int:
    """Put every record through all works, one output each; see `rbtools.cli.loop`."""
    from rbtools.cli.loop import filter_records as loop

    return loop(source, works, work.screen, run=work.run, start=start)


def evaluate(source: Source, work: Any, question: Any) -> int:
    """Ask a question about every record's model, or about the one of `--checkpoint`."""
    from rbtools.engine.tasks import Ask

    return filter_models(source, work, Ask(question, work.run))


def filter_models(source: Source, work: Any, task: Any) -> int:
    """Put every record, or the one made of `--checkpoint`, through a task that needs its model."""
    if source.checkpoint is None:
        if source.arch is not None:
            raise UsageError("--arch describes a --checkpoint, but none is given. Add --checkpoint FILE.")
        return filter_records(source, [task], work)
    if source.files:
        raise UsageError("Both --checkpoint and FILE are given. Evaluate one or the other.")
    path = file_path(source.checkpoint)
    if source.arch is not None:
        from rbtools.engine.subject import named_arch

        try:
            named_arch(source.arch)
        except RbError as wrong:
            raise UsageError(f"--arch: {wrong}") from None

    def start() -> dict[str, Any]:
        from rbtools.engine import subject

        return subject.record_of(path, source.arch, work.run)

    return filter_records(source, [task], work, start)
