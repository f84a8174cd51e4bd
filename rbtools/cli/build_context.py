"""Makes the Run and the Terminal of a command from the values of shared options."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

import click

from rbtools.cli import command_line, events, streams
from rbtools.cli.terminal import Terminal
from rbtools.errors import RbError, UsageError
from rbtools.execution import LOCAL

if TYPE_CHECKING:
    from rbtools.execution.device_rates import DeviceRates
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
    no_store: bool,
    force: bool,
    dry_run: bool,
    jobs: str | None,
    jobs_per_gpu: int | Literal["auto"] | None,
    threads: int | None,
    device: str,
    engine: str,
    device_rate: str | None = None,
    **fields: object,
) -> CommandContext:
    """The run that the options describe, checked once, before the first record.

    Raises UsageError for options that contradict each other, and for a data set, weights, a store or a file
    that is not available. `fields`: further fields of Run.
    """
    from rbtools.execution import resources, slurm
    from rbtools.execution.run import Run
    from rbtools.store import Store

    screen = terminal(quiet, verbose, log)
    resources.check(threads, device)
    if jobs_per_gpu == "auto":
        if engine != LOCAL or jobs not in (None, "auto"):
            other = f"--engine {engine}" if engine != LOCAL else f"--jobs {jobs}"
            raise UsageError(
                f"--jobs-per-gpu auto measures how many workers this machine starts, and {other} says it."
                " Give a number, or leave out one of the two."
            )
        jobs, jobs_per_gpu = "auto", None
    processes = resources.jobs(jobs, threads, jobs_per_gpu, device, engine)
    measured = jobs == "auto" and jobs_per_gpu != 1 and engine == LOCAL and not dry_run
    gpus = resources.gpus(device) if measured else 0
    finished = Store(None if no_store else store, force=force, dry=dry_run)
    if device_rate is not None and not dry_run:
        raise UsageError("--device-rate says how long work would take. Add --dry-run.")
    if dry_run:
        from rbtools.execution.dry_run import DryRun

        rates = None if device_rate is None else _rates(device_rate)
        fields["plan"] = DryRun(finished, max(processes, 1), tell=screen.detail, rates=rates)
        engine, processes = LOCAL, 1
    tasks = (slurm.task() or (1, 1))[1]
    run = Run.of(
        tool=screen.tool,
        store=finished,
        command=command_line.label(),
        jobs=processes,
        divide=(processes != 1 or gpus > 0 or tasks > 1) and not (no_store or force),
        workers=processes * tasks,
        jobs_per_gpu=jobs_per_gpu or 1,
        gpus=gpus,
        threads=threads,
        device=device,
        engine=engine,
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


def _rates(path: str) -> DeviceRates:
    from rbtools.execution.device_rates import DeviceRates

    try:
        return DeviceRates(path)
    except RbError as wrong:
        raise UsageError(str(wrong)) from None


def alone(**fields: object) -> CommandContext:
    """A run in this process that reads images and stores nothing."""
    return build_context(
        store="",
        no_store=True,
        force=False,
        dry_run=False,
        device="cpu",
        jobs=None,
        jobs_per_gpu=1,
        threads=None,
        engine=LOCAL,
        **fields,  # type: ignore[arg-type]
    )
