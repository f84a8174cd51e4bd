"""The options that tools share; a command receives each group of options as one object.

The options of a run are declared as fields of its parts. `build_context` creates the run from the values that
the user typed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from rbtools import registry
from rbtools.cli import calls, events, streams
from rbtools.cli.declare import F, Option, OptionBundle, adding, declared, method_options, takes
from rbtools.cli.source import RecordSource
from rbtools.cli.terminal import Messages, Terminal
from rbtools.errors import RbError, UsageError
from rbtools.execution import LOCAL, resources
from rbtools.execution.run import Access, Placement, Run, Scaling, Selection, Settings
from rbtools.queries import KINDS
from rbtools.registry import param, rare_param
from rbtools.store import Store

PARTS = (Placement, Selection, Scaling, Settings, Access, Run, Messages)
_model = partial(param, group="Model")


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
    """Create the run, and check the options before the first record is read.

    `typed` contains the values of the tool's options, named like the fields of `PARTS`, as the user typed
    them. Raises UsageError if options contradict each other, or if a data set, a file of weights, a store or
    another file is not available.
    """
    screen = terminal(**_popped(typed, Messages))
    made = _placement(**_popped(typed, Placement))
    if typed.get("budget") is not None and made["jobs"] != 1:
        raise UsageError("--budget only works with a single process. Leave out --jobs.")
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
    here = Placement(**typed)
    resources.check(here.threads, here.device)
    if here.address is not None and here.engine != "ray":
        raise UsageError("--ray-address only applies to a Ray cluster. Add --engine ray.")
    per_gpu = typed.get("jobs_per_gpu")
    jobs = resources.jobs(typed.get("jobs"), here.threads, per_gpu, here.device, here.engine)
    return {**typed, "jobs": jobs, "jobs_per_gpu": per_gpu or 1}


def scaling(screen: Terminal, **options: Any) -> dict[str, Any]:
    """The fields of a run that the options of `Scaling` determine. Raises UsageError if these contradict each
    other or name no transform."""
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
            raise UsageError("--backward only applies to stages. Add some: --defend jpeg:75.")
        return None
    from rbtools.defences import stages

    try:
        return stages.Stages(stages.parse(defend, allow_code=allow_code), backward)
    except RbError as wrong:
        raise UsageError(str(wrong)) from None


def record_source(errors: str, **options: object) -> RecordSource:
    """The records of a tool. Raises UsageError if --errors or the folder of --checkpoint is invalid."""
    for word in errors.split(","):
        if word not in ("pass", "retry", "stop"):
            raise UsageError(f"--errors is '{word}'. Expected pass, retry or stop.")
    takes_checkpoint = "checkpoint" in options
    if takes_checkpoint:
        options["checkpoint"] = _file_of_weights(options["checkpoint"])  # type: ignore[arg-type]
        options["kind"] = _kind_of_model(options) if _model_options().keys() <= options.keys() else None
    source = RecordSource(errors=errors, takes_checkpoint=takes_checkpoint, **options)  # type: ignore[arg-type]
    return streams.of_command().source(source)


def sink_source(errors: str, **options: object) -> RecordSource:
    """Like `record_source`, for a tool that reads all records and then writes something else."""
    if "retry" in errors.split(","):
        raise UsageError(
            f"--errors retry only applies to tools that pass records on, but {calls.current().tool} reads all"
            " records and writes something else. Leave it out."
        )
    return record_source(errors, **options)


def _kind_of_model(options: dict[str, Any]) -> Any:
    """The model that can only be queried, if one is named; its options are removed. Raises UsageError."""
    typed = {name: options.pop(name) for name in _model_options()}
    classes = _kinds_of_model()
    named = [cls for cls in classes if typed[_python_name(cls.flag)] is not None]
    given = {name: value for name, value in typed.items() if value != _model_options()[name].default}
    if not named:
        if given:
            flags = " or ".join(cls.flag for cls in classes)
            raise UsageError(f"--{next(iter(given)).replace('_', '-')} only applies to a model in {flags}.")
        return None
    own = {field.name for field in registry.options(named[0])}
    text = given.pop(_python_name(named[0].flag))
    if others := [name for name in given if name not in own]:
        raise UsageError(f"--{others[0].replace('_', '-')} does not apply to {named[0].flag}. Leave it out.")
    for option in ("checkpoint", "arch", "normalize", "files"):
        if options.get(option):
            name = "FILE" if option == "files" else f"--{option}"
            raise UsageError(f"Both {named[0].flag} and {name} are given. Leave one of them out.")
    try:
        return named[0].typed(text, **given)
    except RbError as wrong:
        raise UsageError(f"{named[0].flag}: {wrong}") from None


@functools.cache
def _kinds_of_model() -> list[Any]:
    classes = []
    for name in (*KINDS, *KINDS.plugins):
        with contextlib.suppress(RbError):  # the module of an installed package fails
            classes.append(KINDS.load(name))
    return classes


@functools.cache
def _model_options() -> dict[str, Option]:
    """The options that name models that can only be queried, and the options of their kinds."""
    classes = _kinds_of_model()
    fields = [
        (_python_name(cls.flag), str | None, _model(None, cls.help, metavar=cls.metavar)) for cls in classes
    ]
    named = declared(dataclasses.make_dataclass("NamedModels", fields))
    return {**named, **method_options(classes)}


def _python_name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _file_of_weights(path: str | None) -> str | None:
    """The file, or the file of weights in a folder from the Hugging Face Hub. Raises UsageError."""
    if path is None or not os.path.isdir(path):
        return path
    from rbtools.inputs import published_weights  # --help does not need it

    file = published_weights.in_folder(path)
    if file == path:
        names = " or ".join(published_weights.HUB_FILES)
        raise UsageError(
            f"--checkpoint {path} is a folder without {names}. Name a file, or use --weights DIR for"
            " published weights of the records' architectures."
        )
    return file


_STREAM = ("files", "errors", "allow_empty", "shard", "placeholders", "in_place")
_SINK = ("files", "errors", "allow_empty")
stop_param = param(
    "pass", "What to do with a bad line or a failed record: pass it on, or stop.", metavar="[pass|stop]"
)
stream_options = takes("source", RecordSource, *_STREAM, make=record_source)
_CHECKPOINT = ("checkpoint", "arch", "normalize")
checkpoint_options = takes("source", RecordSource, *_STREAM, *_CHECKPOINT, make=record_source)
sink_options = takes("source", RecordSource, *_SINK, make=sink_source, errors=stop_param)
merging_sink_options = takes("source", RecordSource, *_SINK, "merge", make=sink_source, errors=stop_param)


def eps_param() -> Any:
    text = "Distances: in 1/255 for L-infinity (8, 8/255, 1-4, 1,2,8), for pixels in [0, 1] for L2."
    return param("8", text, metavar="LIST")


def detail_param() -> Any:
    text = "Keep confidences and the confusion matrix in the record, and logits in the store"
    return rare_param(False, f"{text} (with many classes, all in the store).", flags=("--detail",))


_OF_TRAINING = {
    "precision": param(
        "auto",
        "Precision of the networks; weights and losses stay in float32. auto: bf16 if the hardware supports"
        " it and images have 16x16 pixels or more.",
        choices=("auto", "fp32", "bf16"),
    ),
    "prepare": param(
        "fold",
        "With fold, the attack runs on a faster copy of the network, in --precision and with BatchNorm"
        " folded into the layers before it.",
        choices=("none", "fold"),
    ),
}
store_param = param(
    "rb-store", "Folder of stored results and checkpoints.", metavar="DIR", variable="RB_STORE"
)


def takes_run(
    *parts: type,
    without: Sequence[str] = (),
    make: Callable[..., CommandContext] = build_context,
    **changed: object,
) -> Callable[[F], F]:
    """A decorator that passes a run to a command, made from the options of these parts (default: all), except
    those in `without`."""
    options = {name: one for part in parts or PARTS for name, one in declared(part, changed).items()}
    for name in without:
        del options[name]
    return adding(OptionBundle("work", make, list(options.values())))


def source_options(function: F) -> F:
    """A decorator that adds `checkpoint_options`, and the options of models that can only be queried."""
    source = declared(RecordSource)
    chosen = [source[name] for name in (*_STREAM, *_CHECKPOINT)]
    return adding(OptionBundle("source", record_source, [*chosen, *_model_options().values()]))(function)


screen_options = takes("screen", Messages, make=terminal)
store_option = takes("store", Run, "store", make=lambda store: store, store=store_param)
ACCESS = tuple(field.name for field in registry.options(Access))
NO_GRADIENTS = ("gradients_from",)  # for tools that follow none
_OF_EVALUATION = [
    *"split n indices weights member defend backward batch draws name_as".split(),
    *ACCESS,
    *NO_GRADIENTS,
]
seeking_options = takes_run(without=[*_OF_EVALUATION, "prepare"], precision=_OF_TRAINING["precision"])
train_options = takes_run(without=[*_OF_EVALUATION, "seed"], **_OF_TRAINING)
image_options = takes_run(
    *(Selection, Scaling, Settings, Messages),
    without=[
        *"n indices weights member allow_code defend backward batch precision prepare draws".split(),
        *NO_GRADIENTS,
    ],
    make=partial(build_context, device="cpu", store="none"),  # only reads images, in this process
)
