"""What the values of shared options begin: the screen that words go to, and the run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from rbtools.cli import events, python_call
from rbtools.cli.terminal import Terminal
from rbtools.errors import RbError, UsageError
from rbtools.execution import LOCAL

if TYPE_CHECKING:
    from rbtools.execution.context import RunContext


class CommandContext:
    """A run and the screen that its words go to."""

    def __init__(self, run: RunContext, screen: Terminal) -> None:
        self.run, self.screen = run, screen


def terminal(quiet: bool, verbose: bool, log: str | None) -> Terminal:
    """Where the words of the tool that runs go."""
    tool = click.get_current_context().find_root().info_name or "rbtools"
    return python_call.terminal(tool, quiet=quiet, verbose=verbose, log=events.opened(log, tool))


def build_context(
    quiet: bool,
    verbose: bool,
    log: str | None,
    store: str,
    no_store: bool,
    force: bool,
    dry_run: bool,
    **own: Any,
) -> CommandContext:
    """The run that the options mean, checked before the first record and not once for each.

    Raises UsageError for options that contradict each other, and for a data set, weights, a store or a file
    that cannot be had.
    """
    from rbtools.execution import resources
    from rbtools.execution.context import RunContext
    from rbtools.store import Store

    words = terminal(quiet, verbose, log)
    resources.check(own["threads"], own["device"])
    jobs = resources.jobs(own.pop("jobs"), own["threads"], own["jobs_per_gpu"], own["device"], own["engine"])
    kept = Store(None if no_store else store, force=force, dry=dry_run)
    if dry_run:
        from rbtools.execution.dry_run import DryRun

        own |= {"plan": DryRun(kept, max(jobs, 1), tell=words.detail), "engine": LOCAL}
        jobs = 1
    run = RunContext(tool=words.tool, store=kept, jobs=jobs, progress=words.status, notify=words.once, **own)
    run.event = words.tell
    try:
        kept.check()
        if run.dataset is not None:
            from rbtools import datasets

            datasets.source(run.dataset, run.data_dir, run.class_map)
        if isinstance(run.indices, str):
            from rbtools.datasets import indices

            indices.check(run.indices)
        if run.weights is not None:
            from rbtools.inputs import published_weights

            published_weights.check(run.weights)
    except RbError as wrong:
        raise UsageError(str(wrong)) from None
    if run.class_map is not None and not os.path.isfile(run.class_map):
        raise UsageError(f"The class map {run.class_map} does not exist. Expected a file.")
    return CommandContext(run, words)


def alone(**own: Any) -> CommandContext:
    """A run in this process that looks at images and keeps nothing."""
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
        **own,
    )
