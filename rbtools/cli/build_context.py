"""Makes the Run and the Terminal of a command from the values of shared options."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from rbtools import registry
from rbtools.cli import calls, events, streams
from rbtools.cli.terminal import Messages, Terminal
from rbtools.errors import RbError, UsageError
from rbtools.execution import LOCAL
from rbtools.execution.run import Placement, Run, Scaling, Selection, Settings

# The options of a run stand at the fields of these classes.
PARTS = (Placement, Selection, Scaling, Settings, Run, Messages)


class CommandContext(NamedTuple):
    run: Run
    screen: Terminal

    def changed(self, **options: object) -> CommandContext:
        return CommandContext(self.run.changed(**options), self.screen)


def terminal(
    quiet: bool = False, verbose: bool = False, log: str | None = None, config: str | None = None
) -> Terminal:
    """The terminal of the running tool. `config` is unused: the configuration file was read before."""
    tool = calls.current().tool
    return streams.of_command().terminal(tool, quiet, verbose, events.opened(log, tool))


def build_context(**typed: Any) -> CommandContext:
    """Make the run, and check the options before the first record is read.

    `typed` contains the values of the tool's options, named like the fields of `PARTS`, as the user typed
    them. Raises UsageError if options contradict each other, or if a data set, a file of weights, a store or
    another file is not available.
    """
    from rbtools.store import Store

    screen = terminal(**_popped(typed, Messages))
    made = _placement(**_popped(typed, Placement))
    folder, dry = typed.pop("store", "none"), typed.pop("plan", False)
    store = Store(None if folder == "none" else folder, force=typed.get("replace", False))
    scaled = _popped(typed, Scaling)
    made |= {"defend": _stages(**typed), **scaling(screen, **scaled)}
    if "prepare" in typed:
        made["prepare"] = typed["prepare"] != "none"
    made |= {"progress": screen.status, "notify": screen.once, "event": screen.tell}
    run = Run.of(screen.tool, store, **{**typed, **made, "command": calls.current().label})
    if dry:
        from rbtools.execution.dry_run import DryRun

        run = run.changed(plan=DryRun(store), engine=LOCAL, jobs=1)
    try:
        store.check()
        _check_files(run.selection)
    except RbError as wrong:
        raise UsageError(str(wrong)) from None
    return CommandContext(run, screen)


def _popped(typed: dict[str, Any], part: type) -> dict[str, Any]:
    return {field.name: typed.pop(field.name) for field in registry.options(part) if field.name in typed}


def _placement(**typed: Any) -> dict[str, Any]:
    """The place of a run, whose `jobs` becomes a number."""
    from rbtools.execution import resources

    here = Placement(**typed)
    resources.check(here.threads, here.device)
    if here.address is not None and here.engine != "ray":
        raise UsageError("--ray-address is for a Ray cluster. Add --engine ray.")
    per_gpu = typed.get("jobs_per_gpu")
    jobs = resources.jobs(typed.get("jobs"), here.threads, per_gpu, here.device, here.engine)
    return {**typed, "jobs": jobs, "jobs_per_gpu": per_gpu or 1}


def scaling(screen: Terminal, **options: Any) -> dict[str, Any]:
    """The fields of a run that the options of `Scaling` determine. Raises UsageError if these contradict each
    other or name no transform."""
    if not any(options.values()):
        return {}
    from rbtools.datasets import preprocessing
    from rbtools.inputs.recognition import numbers

    try:
        made, name = preprocessing.of_options(**options), options["transform"]
        normalize = None if name is None else preprocessing.preset(name).get("normalize")
    except RbError as wrong:
        raise UsageError(str(wrong)) from None
    if made is not None and name is not None:
        told = "" if normalize is None else f" --normalize '{' '.join(map(numbers, normalize))}'"
        screen.once(f"--transform {name} is {made.options}{told}.")
    return {"preprocessing": str(made), "normalize": normalize}


def _check_files(given: Selection) -> None:
    if given.dataset is not None:
        from rbtools import datasets

        datasets.source(given.dataset, given.data_dir, given.class_map, allow_code=given.allow_code)
    if given.indices is not None:
        from rbtools.datasets import indices

        indices.check(given.indices)
    if given.weights is not None:
        from rbtools.inputs import published_weights

        published_weights.check(given.weights)
    if given.class_map is not None and not os.path.isfile(given.class_map):
        raise UsageError(f"The class map {given.class_map} does not exist. Expected a file.")


def _stages(
    defend: str | None = None, backward: Any = None, allow_code: bool = False, **others: object
) -> Any:
    if defend is None:
        if backward is not None:
            raise UsageError("--backward is for stages. Add some: --defend jpeg:75.")
        return None
    from rbtools.defences import stages

    try:
        return stages.Stages(stages.parse(defend, allow_code=allow_code), backward)
    except RbError as wrong:
        raise UsageError(str(wrong)) from None


def alone(**values: object) -> CommandContext:
    """A run in the current process that only reads images."""
    return build_context(device="cpu", store="none", **values)
