"""rb-arch --from-checkpoint: files of weights as records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rbtools.cli import shared
from rbtools.errors import RbError, UsageError
from rbtools.records import SCHEMA

if TYPE_CHECKING:
    from rbtools.execution.context import RunContext

Record = dict[str, Any]


def records(
    files: Sequence[str], arch: str | None, normalize: str | None, screen: shared.Terminal, run: RunContext
) -> Iterator[Record]:
    """A record for each file, in their order; with an `error` where its network cannot be told.

    Raises UsageError for what is no file, before any is read.
    """
    from rbtools.inputs import checkpoints

    hints = checkpoints.CheckpointHints(arch, normalize)
    shared.checked(hints, run)
    paths = [shared.file_path(name) for name in files]

    def made() -> Iterator[Record]:
        for path in paths:
            try:
                yield checkpoints.record_of(path, hints, run, with_data=run.dataset is not None)
            except UsageError:
                raise
            except RbError as wrong:
                screen.error(str(wrong))
                error = {"tool": screen.tool, "message": str(wrong)}
                yield {"schema": SCHEMA, "checkpoint_file": path, "error": error}

    return made()
