"""Makes the Run and the Terminal of a command from the values of shared options."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from rbtools.cli import command_line, events, streams
from rbtools.cli.terminal import Terminal
from rbtools.errors import RbError, UsageError
from rbtools.execution import LOCAL

if TYPE_CHECKING:
    from rbtools.execution.run import Run


class CommandContext:
    """A run and the terminal that its messages go to."""

    def __init__(self, run: Run, screen: Terminal) -> None:
        self.run, self.screen = run, screen

    def changed(self, **options: object) -> CommandContext:
        """The same with other options of the run."""
        return CommandContext(self.run.changed(**options), self.screen)


def terminal(quiet: bool, verbose: bool, log: str | None) -> Terminal:
    """The terminal that the messages of the running tool go to."""
    tool = click.get_current_context().find_root().info_name or "rbtools"
    return streams.of_command().terminal(tool, quiet, verbose, events.opened(log, tool))


def build_context(
    quiet: bool,
    verbose: bool,
    log: str | None,
    store: str,
    force: bool,
    dry_run: bool,
    jobs: str | None,
    jobs_per_gpu: int | None,
    threads: int | None,
    device: str,
    engine: str,
    prepare: str = "fold",
    defend: str | None = None,
    backward: str | None = None,
    **fields: object,
) -> CommandContext:
    """The run that the options describe, checked once, before the first record.

    Raises UsageError for options that contradict each other, and for a data set, weights, a store or a file
    that is not available. `fields`: further fields of Run.
    """
    from rbtools.execution import resources
    from rbtools.execution.run import Run
    from rbtools.store import Store

    screen = terminal(quiet, verbose, log)
    resources.check(threads, device)
    if fields.get("address") is not None and engine != "ray":
        raise UsageError("--ray-address is of a Ray cluster. Add --engine ray.")
    processes = resources.jobs(jobs, threads, jobs_per_gpu, device, engine)
    finished = Store(None if store == "none" else store, force=force)
    if dry_run:
        from rbtools.execution.dry_run import DryRun

        fields["plan"] = DryRun(finished)
        engine, processes = LOCAL, 1
    if defend is not None:
        fields["defend"] = _stages(defend, backward, bool(fields.get("allow_code")))
    elif backward is not None:
        raise UsageError("--backward is of stages. Name some: --defend jpeg:75.")
    run = Run.of(
        tool=screen.tool,
        store=finished,
        command=command_line.label(),
        jobs=processes,
        jobs_per_gpu=jobs_per_gpu or 1,
        threads=threads,
        device=device,
        engine=engine,
        prepare=prepare != "none",
        replace=force,
        progress=screen.status,
        notify=screen.once,
        event=screen.tell,
        **fields,
    )
    try:
        finished.check()
        if run.selection.dataset is not None:
            from rbtools import datasets

            datasets.source(
                run.selection.dataset,
                run.selection.data_dir,
                run.selection.class_map,
                allow_code=run.selection.allow_code,
            )
        if isinstance(run.selection.indices, str):
            from rbtools.datasets import indices

            indices.check(run.selection.indices)
        if run.selection.weights is not None:
            from rbtools.inputs import published_weights

            published_weights.check(run.selection.weights)
    except RbError as wrong:
        raise UsageError(str(wrong)) from None
    if run.selection.class_map is not None and not os.path.isfile(run.selection.class_map):
        raise UsageError(f"The class map {run.selection.class_map} does not exist. Expected a file.")
    return CommandContext(run, screen)


def _stages(text: str, backward: str | None, allow_code: bool) -> Any:
    """The stages of --defend. Raises UsageError."""
    from rbtools.defences import stages

    try:
        return stages.Stages(stages.parse(text, allow_code=allow_code), backward)  # type: ignore[arg-type]
    except RbError as wrong:
        raise UsageError(str(wrong)) from None


def alone(**fields: object) -> CommandContext:
    """A run in this process that reads images and computes nothing."""
    return build_context(
        force=False,
        dry_run=False,
        device="cpu",
        jobs=None,
        jobs_per_gpu=1,
        threads=None,
        engine=LOCAL,
        **{"store": "none", **fields},  # type: ignore[arg-type]
    )
