"""Makes the Run and the Terminal of a command from the values of shared options."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools.cli import calls, command_line, events, streams
from rbtools.cli.run_options import RunOptions
from rbtools.cli.terminal import Terminal
from rbtools.errors import RbError, UsageError
from rbtools.execution import LOCAL

if TYPE_CHECKING:
    from rbtools.execution.run import Run


class CommandContext(NamedTuple):
    run: Run
    screen: Terminal

    def changed(self, **options: object) -> CommandContext:
        return CommandContext(self.run.changed(**options), self.screen)


def terminal(quiet: bool, verbose: bool, log: str | None, config: str | None = None) -> Terminal:
    """The terminal of the running tool. `config` is unused: the configuration file was read before."""
    tool = calls.current().tool
    return streams.of_command().terminal(tool, quiet, verbose, events.opened(log, tool))


def build_context(**values: object) -> CommandContext:
    """Make the run, and check the options before the first record is read.

    `values` contains the options of RunOptions that the tool has. Raises UsageError if options contradict
    each other, or if a data set, a file of weights, a store or another file is not available.
    """
    from rbtools.execution import resources
    from rbtools.execution.run import OPTIONS, Run
    from rbtools.store import Store

    given = RunOptions(**values)  # type: ignore[arg-type]
    screen = terminal(given.quiet, given.verbose, given.log)
    resources.check(given.threads, given.device)
    if given.address is not None and given.engine != "ray":
        raise UsageError("--ray-address is for a Ray cluster. Add --engine ray.")
    processes = resources.jobs(given.jobs, given.threads, given.jobs_per_gpu, given.device, given.engine)
    store = Store(None if given.store == "none" else given.store, force=given.force)
    resolved = {
        "jobs": processes,
        "jobs_per_gpu": given.jobs_per_gpu or 1,
        "prepare": given.prepare != "none",
        "replace": given.force,
        "defend": _stages(given),
        "command": command_line.label(),
        "progress": screen.status,
        "notify": screen.once,
        "event": screen.tell,
    }
    typed = {name: value for name, value in values.items() if name in OPTIONS}
    resolved |= scaling(screen, **{name: getattr(given, name) for name in SCALING})
    run = Run.of(tool=screen.tool, **{**typed, **resolved, "store": store})
    if given.dry_run:
        from rbtools.execution.dry_run import DryRun

        run = run.changed(plan=DryRun(store), engine=LOCAL, jobs=1)
    try:
        store.check()
        _check_files(given)
    except RbError as wrong:
        raise UsageError(str(wrong)) from None
    return CommandContext(run, screen)


SCALING = ("resize", "crop", "interpolation", "squash", "transform")


def scaling(screen: Terminal, **options: Any) -> dict[str, Any]:
    """The options of a run that `--resize`, `--crop`, `--interpolation`, `--squash` and `--transform`
    determine. Raises UsageError if these contradict each other or name no transform."""
    if not any(options.values()):
        return {}
    from rbtools.datasets import preprocessing
    from rbtools.inputs.named_networks import numbers

    try:
        made, name = preprocessing.of_options(**options), options["transform"]
        normalize = None if name is None else preprocessing.preset(name).get("normalize")
    except RbError as wrong:
        raise UsageError(str(wrong)) from None
    if made is not None and name is not None:
        told = "" if normalize is None else f" --normalize '{' '.join(map(numbers, normalize))}'"
        screen.once(f"--transform {name} is {made.options}{told}.")
    return {"preprocessing": str(made), "normalize": normalize}


def _check_files(given: RunOptions) -> None:
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


def _stages(given: RunOptions) -> Any:
    if given.defend is None:
        if given.backward is not None:
            raise UsageError("--backward is for stages. Add some: --defend jpeg:75.")
        return None
    from rbtools.defences import stages

    try:
        named = stages.parse(given.defend, allow_code=given.allow_code)
        return stages.Stages(named, given.backward)  # type: ignore[arg-type]
    except RbError as wrong:
        raise UsageError(str(wrong)) from None


def alone(**values: object) -> CommandContext:
    """A run in the current process that only reads images."""
    return build_context(device="cpu", store="none", **values)
