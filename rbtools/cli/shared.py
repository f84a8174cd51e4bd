"""The names that every command imports: options, the filter loop, and functions that build methods."""
# ruff: noqa: F401 - the commands use the imported names

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rbtools import registry
from rbtools.cli import calls, streams
from rbtools.cli.declare import command, group, takes
from rbtools.cli.options import CommandContext
from rbtools.cli.output import DONE, FAILED
from rbtools.cli.parse_units import build
from rbtools.cli.source import RecordSource, bad_line_record, file_path, read_all
from rbtools.cli.streams import opened_output
from rbtools.cli.terminal import Terminal
from rbtools.errors import RbError, UsageError

if TYPE_CHECKING:
    from rbtools.evaluation.spec import Evaluation
    from rbtools.execution.engine import JobFunction
    from rbtools.execution.run import Run
    from rbtools.inputs.checkpoints import CheckpointHints


class _WithPreset(Protocol):
    @property
    def preset(self) -> str | None: ...


_Options = TypeVar("_Options", bound=_WithPreset)


def with_preset(kind: str, options: _Options, params: dict[str, Any]) -> tuple[_Options, dict[str, Any]]:
    """The settings of the preset, if one is given, overridden by options that the user gives."""
    if options.preset is None:
        return options, params
    preset, given = registry.preset(kind, options.preset), calls.current().given
    fresh = {name: value for name, value in preset.options.items() if name not in given}
    changed: _Options = dataclasses.replace(options, **fresh)  # type: ignore[type-var]
    return changed, {**preset.params, **params}


# The exit status of a command, or a function that does the work and returns it, after all options are read.
Status = int | Callable[[], int]


def done(status: Status) -> int:
    """The exit status; if `status` is a function, the function is called and does the work."""
    return status() if callable(status) else status


def filter_records(
    source: RecordSource,
    works: Sequence[JobFunction],
    work: CommandContext,
    start: Callable[[Run], dict[str, Any]] | None = None,
) -> Status:
    """Run each job on every record, as `rbtools.cli.filter_loop` describes."""
    from rbtools.cli.filter_loop import filter_records as loop

    if streams.of_command().each(works, work.run):
        return DONE
    return partial(loop, source, works, work.screen, run=work.run, start=start)


def evaluate(source: RecordSource, work: CommandContext, task: Evaluation) -> Status:
    """Evaluate the model of every record, or only the model of `--checkpoint`."""
    from rbtools.jobs.evaluate_record import EvaluateJob

    return filter_models(source, work, EvaluateJob((task,)))


def filter_models(source: RecordSource, work: CommandContext, job: JobFunction) -> Status:
    """Run a job on every record, or on that of `--checkpoint` or of a model that can only be queried. Raises
    UsageError."""
    if source.kind is not None:
        from rbtools.inputs import queried

        kind = source.kind
        # The user names what is run or reached; on a CPU, the model is asked no question in vain.
        device = work.run.placement.device
        trusted = work.changed(allow_code=True, device="cpu" if device == "auto" else device)
        return filter_records(source, [job], trusted, lambda run: queried.record_of(kind, run))
    if source.checkpoint is None:
        described = {"--arch": source.arch, "--normalize": source.normalize}
        for option, value in described.items():
            if value is not None:
                raise UsageError(
                    f"{option} describes a --checkpoint, but none is given. Add --checkpoint FILE."
                )
        if work.run.selection.member is not None and work.run.selection.weights is None:
            raise UsageError("--member only applies to weights. Add --checkpoint FILE, or --weights DIR.")
        return filter_records(source, [job], work)
    if source.files:
        raise UsageError("Both --checkpoint and FILE are given. Evaluate one or the other.")
    if work.run.selection.weights is not None:
        raise UsageError("Both a file and a folder of weights are given. Evaluate one or the other.")
    access = vars(work.run.access).items()
    if given := [name for name, value in access if value != getattr(type(work.run.access), name)]:
        raise UsageError(f"--{given[0]} only applies to --model-cmd and --model-url. Leave it out.")
    path = file_path(source.checkpoint)
    from rbtools.inputs import checkpoints

    hints = checkpoints.CheckpointHints(source.arch, source.normalize)
    checked(hints, work.run)
    return filter_records(source, [job], work, lambda run: checkpoints.record_of(path, hints, run))


def beside_paper(source: RecordSource, job: JobFunction, preset: str) -> JobFunction:
    """The job; for a single checkpoint, it also shows the results that the preset's paper reports."""
    if source.checkpoint is None:
        return job
    from rbtools.jobs.beside_paper import BesidePaper

    return BesidePaper(job, registry.gathered("preset-aliases").get(preset, preset))


def checked(hints: CheckpointHints, run: Run) -> None:
    """Raise UsageError if the options that describe a file are invalid; the file itself is not read."""
    try:
        arch = hints.given(run)
    except RbError as wrong:
        option = "" if str(wrong).startswith("--") else "--arch: "
        raise UsageError(f"{option}{wrong}") from None
    if arch.get("space") == "python" and not run.selection.allow_code:
        raise UsageError(
            f"--arch python:{arch['name']} runs your own Python code. If you trust it, add --allow-code."
        )
