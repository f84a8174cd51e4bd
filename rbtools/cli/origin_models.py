"""The models of `rb-attack transfer --from`: their adversarial examples are tried on other models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rbtools.cli import streams
from rbtools.cli.source import file_path
from rbtools.errors import RbError, UsageError
from rbtools.plain_files import opened

if TYPE_CHECKING:
    from rbtools.execution.run import Run


def models_of(origin: str, run: Run) -> list[dict[str, Any]]:
    """One record for each file in --from, or the records that a Python call passes."""
    given = streams.of_command().file(origin)
    if isinstance(given, Mapping):
        given = [given]
    return [_model_of(one, run) for one in (origin.split(",") if given is None else given)]


def _model_of(given: str | Mapping[str, Any], run: Run) -> dict[str, Any]:
    from rbtools.inputs import checkpoints, resolve

    try:
        if isinstance(given, Mapping):
            record = dict(given)
        else:
            path = file_path(given.strip())
            with opened(path) as stream:
                if stream.read(1) != b"{":
                    return checkpoints.record_of(path, checkpoints.CheckpointHints(None, None), run)
            record = streams.of_command().one_record(path, "attack")
        resolve.checkpoint_name(record, run)
        return record
    except RbError as wrong:
        raise UsageError(f"--from: {wrong}") from None
