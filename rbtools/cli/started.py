"""What the values of shared options begin: the screen that words go to, and the run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from rbtools.cli import events
from rbtools.cli.screen import Screen
from rbtools.errors import RbError, UsageError

if TYPE_CHECKING:
    from rbtools.engine.run import Run


class Work:
    """A run and the screen that its words go to."""

    def __init__(self, run: Run, screen: Screen) -> None:
        self.run, self.screen = run, screen


def screen(quiet: bool, verbose: bool, log: str | None) -> Screen:
    """Where the words of the tool that runs go."""
    tool = click.get_current_context().find_root().info_name or "rbtools"
    return Screen(tool, quiet=quiet, verbose=verbose, log=events.opened(log, tool))


def work(
    quiet: bool,
    verbose: bool,
    log: str | None,
    store: str,
    no_store: bool,
    force: bool,
    dry_run: bool,
    **own: Any,
) -> Work:
    """The run that the options mean, checked before the first record and not once for each.

    Raises UsageError for options that contradict each other, and for a data set, weights, a store or a file
    that cannot be had.
    """
    from rbtools.engine import placing
    from rbtools.engine.run import Run
    from rbtools.store import Store

    words = screen(quiet, verbose, log)
    if own["ray_address"] is not None and own["engine"] != "ray":
        raise UsageError("--ray-address names a Ray cluster, but the engine is local. Add --engine ray.")
    placing.check(own["threads"], own["device"])
    jobs = placing.jobs(own.pop("jobs"), own["threads"], own["jobs_per_gpu"], own["device"], own["engine"])
    kept = Store(None if no_store else store, force=force, dry=dry_run)
    if dry_run:
        from rbtools.engine.plan import Plan

        own |= {"plan": Plan(kept, max(jobs, 1), tell=words.detail), "engine": "local"}
        jobs = 1
    run = Run(tool=words.tool, store=kept, jobs=jobs, progress=words.status, remark=words.once, **own)
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
            from rbtools.engine import published

            published.check(run.weights)
    except RbError as wrong:
        raise UsageError(str(wrong)) from None
    if run.class_map is not None and not os.path.isfile(run.class_map):
        raise UsageError(f"The class map {run.class_map} does not exist. Expected a file.")
    return Work(run, words)


def alone(**own: Any) -> Work:
    """A run in this process that looks at images and keeps nothing."""
    return work(
        store="",
        no_store=True,
        force=False,
        dry_run=False,
        device="cpu",
        jobs=None,
        jobs_per_gpu=1,
        threads=None,
        engine="local",
        ray_address=None,
        **own,
    )
