"""The options that tools share, in bundles that arrive at a command as one object."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from rbtools.cli import build_context, config, evaluation_options, streams
from rbtools.cli.method_options import Decorator, spec_options
from rbtools.cli.option_parts import Compound, Part, old_flag
from rbtools.cli.source import RecordSource
from rbtools.errors import UsageError
from rbtools.execution import ENGINES, LOCAL

F = TypeVar("F", bound=Callable[..., Any])


def record_source(errors: str, **options: object) -> RecordSource:
    """The records that the command works on. Raises UsageError for a word that --errors does not have."""
    for word in errors.split(","):
        if word not in ("pass", "retry", "stop"):
            raise UsageError(f"--errors is '{word}'. Expected pass, retry or stop.")
    options["errors"] = errors
    return streams.of_command().source(**options)


def bundle(name: str, make: Callable[..., Any], *options: Callable[[Any], Any]) -> Callable[[F], F]:
    """A decorator that adds options and hands their values to the command as one object."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def command_(**kwargs: object) -> object:
            values = {key: kwargs.pop(key) for key in keys}
            return function(**kwargs, **{name: make(**values)})

        before = len(getattr(command_, "__click_params__", []))
        for option in reversed(options):
            option(command_)
        added = command_.__click_params__[before:]  # type: ignore[attr-defined]
        keys = [param.name for param in added if param.expose_value]
        return command_  # type: ignore[return-value]

    return decorate


def spec(
    name: str,
    cls: type,
    make: Callable[..., Any] | None = None,
    defaults: Mapping[str, object] | None = None,
    splits: Mapping[str, Callable[[str], dict[str, Any]]] | None = None,
    **shared: Decorator,
) -> Callable[[F], F]:
    """A bundle of the fields of a dataclass; `make` takes their values in its place.

    `defaults`, `shared` and `splits`: see `spec_options`.
    """
    return bundle(name, make or cls, *spec_options(cls, defaults or {}, shared, splits))


_files = click.argument("files", nargs=-1, metavar="[FILE]...")
_RETRYING = (old_flag("--strict", "errors", "stop"), old_flag("--retry-errors", "errors", "retry"))
_stop_option = click.option(
    "--errors",
    default="pass",
    metavar="[pass|stop]",
    help="At a bad line or a record that failed: pass it on, or stop.",
)
_errors_option = click.option(
    "--errors",
    default="pass",
    metavar="[pass|retry|stop]",
    help="At a bad line or a record that failed: pass it on, process it again where it failed before (retry),"
    " or stop.",
)
allow_empty_option = click.option(
    "--allow-empty", is_flag=True, help="End with status 0, not 3, where no records come in."
)
_stream_options = (
    _files,
    _errors_option,
    *_RETRYING,
    allow_empty_option,
    click.option(
        "--shard",
        default=None,
        metavar="I/N",
        help="Only every N-th result, from the I-th on (1/4 to 4/4), or with --checkpoint its share of the"
        " images; auto: the shard of this Slurm task. I/N:places writes a line in place of each result of"
        " another shard, so that the files of all shards can be joined line by line.",
    ),
    click.option("--in-place", is_flag=True, help="Write the records back into the one FILE given."),
)


def gone(name: str, instead: str, *, is_flag: bool = False) -> Callable[[F], F]:
    """A removed option, hidden: using it is an error that names its replacement."""

    def refuse(context: click.Context, param: click.Parameter, value: object) -> None:
        if value not in (None, False):
            raise UsageError(f"{name} is gone. {instead}")

    return click.option(name, is_flag=is_flag, hidden=True, expose_value=False, callback=refuse)


def _refuse(option: str) -> None:
    """Refuse an option of the tools that write each record on, by its name."""
    raise UsageError(
        f"{option} is for tools that write every record on;"
        f" {click.get_current_context().command_path.split()[0]} reads all records and writes something else."
        " Leave it out."
    )


def _refused(context: click.Context, param: click.Parameter, value: object) -> None:
    if value:
        _refuse(param.opts[0])


def _sink_source(errors: str, **options: object) -> RecordSource:
    if "retry" in errors.split(","):
        _refuse("--errors retry")
    return record_source(errors, **options)


# Hidden: using one is an error that says why the tool does not have it.
_refused_options = tuple(
    click.option(name, is_flag=flag, hidden=True, expose_value=False, callback=_refused)
    for name, flag in (("--shard", False), ("--in-place", True))
)

prompts_part = click.option(
    "--prompts",
    cls=Part,
    part_of="arch:prompts",
    metavar="FILE",
    help="for open_clip:NAME, the classes of the zero-shot classifier: a line for each, and templates such as"
    " 'a photo of a {}.', or JSON.",
)
arch_option = click.option(
    "--arch",
    cls=Compound,
    free=True,
    metavar="NAME",
    help="Its architecture: resnet18, nb201-13714, a cell's string, torchvision:NAME, timm:NAME,"
    " repo:OWNER/NAME, robustbench:NAME, open_clip:NAME:prompts=FILE, or python:MODULE:FUNCTION;"
    " preactresnet18:shortcut=input for a variant.  [default: recognised in the file]",
)
normalize_option = click.option(
    "--normalize",
    metavar="MEAN STD|none|NAME",
    help="Its normalisation, if the file has none: numbers such as 0.49,0.48,0.45 0.25,0.24,0.26, or cifar10,"
    " imagenet ..., or per-image.  [default: inferred from its BatchNorm layers, else what all publish for"
    " such weights, else asked for; none for python:]",
)

stream_options = bundle("source", record_source, *_stream_options)
_sink_options = (_files, _stop_option, *_RETRYING, allow_empty_option, *_refused_options)
sink_options = bundle("source", _sink_source, *_sink_options)
merge_option = click.option(
    "--merge/--no-merge",
    default=True,
    help="Merge records of the same model; of a metric that several have, the value of more images counts.",
)
merging_sink_options = bundle("source", _sink_source, *_sink_options, merge_option)


def _weights(text: str) -> dict[str, Any]:
    """FILE#MEMBER, or a folder of weights."""
    path, _, member = (
        (text, "", "") if os.path.exists(text) else text.rpartition("#") if "#" in text else (text, "", "")
    )
    # A folder as downloads from the Hub have it.
    if os.path.isdir(path):
        from rbtools.inputs.published_weights import HUB_FILES  # --help does not need it

        path = next(filter(os.path.isfile, [os.path.join(path, name) for name in HUB_FILES]), path)
    values = {"weights" if os.path.isdir(path) else "checkpoint": path} if path else {}
    return values | ({"member": member} if member else {})


checkpoint_option = click.option(
    "--checkpoint",
    cls=Compound,
    split=_weights,
    metavar="FILE[#MEMBER]|DIR",
    help="Evaluate this checkpoint; no records are read. #MEMBER: which weights, where a file has several:"
    " best, ema, cifar10/777 ... Published weights have names: hf:ORG/NAME[@REVISION], timm:NAME,"
    " torchvision:NAME[:WEIGHTS]; --download fetches them. DIR: for records without a checkpoint, published"
    " weights of nasbench201 by index: 000123-FULL.pth, or NATS-Bench's 000123.pickle.pbz2.",
)
weights_parts = (
    click.option("--weights", cls=Part, part_of="checkpoint", metavar="DIR", now="--checkpoint DIR"),
    click.option("--member", cls=Part, part_of="checkpoint", metavar="NAME", now="--checkpoint FILE#MEMBER"),
)
source_options = bundle(
    "source", record_source, *_stream_options, checkpoint_option, arch_option, prompts_part, normalize_option
)

eps_option = click.option(
    "--eps",
    cls=Compound,
    default="8",
    metavar="LIST",
    help="Distances to attack at: in 1/255 for L-infinity (8, 8/255, 1-4, 1,2,8), on [0, 1] for L2.",
)

detail_option = click.option(
    "--detail",
    is_flag=True,
    help="Keep confidence and confusion in the record, those of many classes and logits in the store.",
)

_log_option = click.option(
    "--log", metavar="FILE", default=None, help="Append events to FILE, one JSON object per line."
)
_word_options = (
    click.option("--quiet", "-q", is_flag=True, help="Print only warnings and errors on stderr."),
    click.option(
        "--verbose", "-v", is_flag=True, help="Print more on stderr, such as the seconds of each stage."
    ),
    click.option(
        "--config",
        metavar="FILE",
        envvar=config.VARIABLE,
        expose_value=False,
        help="Defaults for options, as YAML; none for no file.  [default: rbtools.yaml here, over"
        " rbtools/config.yaml in XDG_CONFIG_HOME]",
    ),
)

_message_options = (*_word_options[:2], _log_option, *_word_options[2:])
screen_options = bundle("screen", build_context.terminal, *_message_options)


def _logs(text: str) -> dict[str, Any]:
    """FILE, tensorboard:DIR, or both with a comma."""
    files = [piece for piece in text.split(",") if not piece.startswith("tensorboard:")]
    boards = [piece.partition(":")[2] for piece in text.split(",") if piece.startswith("tensorboard:")]
    return {name: ",".join(some) for name, some in (("log", files), ("tensorboard", boards)) if some}


# The log of a training, and --tensorboard, which arrives at the command by itself.
_training_log_option = click.option(
    "--log",
    cls=Compound,
    split=_logs,
    metavar="FILE|tensorboard:DIR",
    help="Append events to FILE, one JSON object per line; or write the curves of all epochs to DIR (pip"
    " install 'rbtools[tensorboard]').",
)
tensorboard_part = click.option(
    "--tensorboard", cls=Part, part_of="log", metavar="DIR", now="--log tensorboard:DIR"
)


store_option = click.option(
    "--store",
    envvar="RB_STORE",
    default="rb-store",
    metavar="DIR",
    show_envvar=True,
    help="Folder of stored results and checkpoints.",
)

_store_options = (
    click.option(
        "--store",
        envvar="RB_STORE",
        default="rb-store",
        metavar="DIR|none",
        show_envvar=True,
        help="Folder of stored results and checkpoints; none: neither write nor read one.",
    ),
    old_flag("--no-store", "store", "none"),
    click.option(
        "--force",
        is_flag=True,
        help="Compute again what the store already has, and overwrite results that were measured with another"
        " protocol.",
    ),
    click.option(
        "--dry-run",
        is_flag=True,
        help="Compute nothing; report what would be, how much the store has, and about how long it takes.",
    ),
    gone("--device-rate", "--dry-run says how long work takes on this machine, by results of the store."),
)

allow_code_option = click.option(
    "--allow-code",
    is_flag=True,
    help="Let python:MODULE:NAME, TorchScript and torch.export files run: they are programs.",
)
_data_options = (
    click.option(
        "--dataset",
        cls=Compound,
        free=True,
        metavar="NAME",
        default=None,
        help="digits, cifar10, cifar10:classes=cat/dog, cifar10-c:fog.3 ..., imagefolder:PATH, npz:PATH,"
        " parquet:PATH or python:MODULE:CLASS.  [default: the record's, else digits]",
    ),
    click.option(
        "--data-dir",
        envvar="RB_DATA",
        default=None,
        metavar="DIR",
        help="Folder of published data sets, packed or not.  [default: data]",
        show_envvar=True,
    ),
    click.option("--download", is_flag=True, help="Download a missing published data set into --data-dir."),
    click.option(
        "--class-map",
        cls=Part,
        part_of="dataset:class-map",
        metavar="FILE",
        help="JSON file from class to class number, if the checkpoint's order is not the data set's.",
    ),
    click.option(
        "--classes",
        metavar="LIST",
        default=None,
        help="The data set's images are of these classes of the network only: names of its class folders, or"
        " for each class the number or name that the network has for it, as in 1,3,5.",
    ),
)


def _workers(text: str) -> dict[str, Any]:
    """N, auto, or ray[:HOST:PORT]."""
    engine, colon, address = text.partition(":")
    if engine == LOCAL or engine not in ENGINES:
        return {"jobs": text}
    return {"engine": engine, "address": address} if colon else {"engine": engine}


_machine_options = (
    click.option("--device", default="auto", metavar="NAME", help="cpu, cuda, cuda:1, or auto."),
    click.option(
        "--jobs",
        cls=Compound,
        split=_workers,
        default=None,
        metavar="N|auto|ray[:HOST:PORT]",
        help="Worker processes, spread over all GPUs; auto: one for each core, or for each GPU; ray: on a Ray"
        " cluster (pip install 'rbtools[ray]'), without an address that of RAY_ADDRESS, else one that runs on"
        " this machine, else a new one.  [default: 1; on Ray, as many as fit the cluster]",
    ),
    click.option(
        "--jobs-per-gpu",
        cls=Part,
        part_of="jobs:per-gpu",
        default=None,
        type=click.IntRange(1),
        metavar="N",
        help="Workers on each GPU with auto and ray.  [default: 1]",
    ),
    click.option(
        "--engine",
        cls=Part,
        part_of="jobs:engine",
        default=LOCAL,
        type=click.Choice(tuple(ENGINES)),
        help="Where N workers run.",
        now="--jobs ray[:HOST:PORT]",
    ),
    click.option(
        "--ray-address",
        "address",
        cls=Part,
        part_of="jobs:address",
        metavar="HOST:PORT",
        default=None,
        help="Of the Ray cluster, with engine=ray.",
        now="--jobs ray:HOST:PORT",
    ),
    click.option(
        "--unordered",
        cls=Part,
        part_of="jobs:unordered",
        is_flag=True,
        help="Write records as they finish, not in input order.",
    ),
    click.option(
        "--threads",
        type=click.IntRange(1),
        default=None,
        help="CPU threads of one model.  [default: 1 for nasbench201, else OMP_NUM_THREADS, else as many as"
        " are measured to pay; at most the cores, which jobs share]",
    ),
    *_data_options,
    allow_code_option,
)


_training_options = (
    click.option(
        "--precision",
        default="auto",
        type=click.Choice(("auto", "fp32", "bf16")),
        help="Precision of the networks; weights and losses stay float32. auto: bf16 where the machine has it"
        " and images have 16 pixels a side or more.",
    ),
    click.option(
        "--prepare",
        default="fold",
        type=click.Choice(("none", "fold")),
        help="fold: attack a copy with BatchNorm folded, channels last and in --precision.",
    ),
    old_flag("--no-prepare", "prepare", "none"),
)
_seed_option = click.option("--seed", default=0, type=click.IntRange(0), help="Seed of all random numbers.")


def _work(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """A decorator that hands the run of these options and of those of the machine to a command."""
    return bundle("work", build_context.build_context, *_machine_options, *options)


seeking_options = _work(_seed_option, _training_options[0], *_store_options, *_message_options)
train_options = _work(*_training_options, *_store_options, *_word_options, _training_log_option)
_split_option = click.option("--split", default="test", help="Which split to evaluate on.")


_as_option = click.option("--as", "name_as", metavar="NAME", default=None, help="Call the result NAME.")
_evaluation_options = (
    _seed_option,
    *weights_parts,
    evaluation_options.n_option,
    evaluation_options.indices_part,
    evaluation_options.batch_option,
    _as_option,
    click.option("--replace", cls=Part, part_of="force", is_flag=True, now="--force"),
    *_store_options,
    *_message_options,
)
# Entries that are measured again name their split and images; results never come from the store.
verify_options = bundle(
    "work",
    functools.partial(build_context.build_context, force=False, dry_run=False),
    _seed_option,
    *_machine_options,
    *weights_parts,
    click.option("--n", type=click.IntRange(1), default=None, help="On N random images of each entry's."),
    evaluation_options.batch_option,
    store_option,
    *_message_options,
)
_split_options = (_split_option, evaluation_options.per_image_option)
_verdict_options = (*evaluation_options.of_draws, *evaluation_options.of_stages)
_judging_options = (*_verdict_options, *_split_options)
bare_run_options = _work(*evaluation_options.of_draws, *_split_options, *_evaluation_options)
run_options = _work(*_judging_options, *_evaluation_options)
search_options = _work(*_judging_options, *evaluation_options.of_searches, *_evaluation_options)
searched_splits_options = _work(
    *_verdict_options,
    evaluation_options.per_image_option,
    *evaluation_options.of_searches,
    *_evaluation_options,
)
both_splits_options = _work(*_verdict_options, evaluation_options.per_image_option, *_evaluation_options)
measuring_options = _work(*_evaluation_options)
# The parts of a card have their own names; --precision is of the intervals.
card_options = _work(
    *_verdict_options,
    evaluation_options.per_image_option,
    evaluation_options.prepare_option,
    *(option for option in _evaluation_options if option is not _as_option),
)


def _long_options(*groups: Sequence[Any]) -> frozenset[str]:
    """The names of these options, without dashes."""

    def holder() -> None: ...

    for option in (declared for group in groups for declared in group):
        option(holder)
    params = getattr(holder, "__click_params__", [])
    return frozenset(flag[2:] for param in params for flag in param.opts if flag.startswith("--"))


config.SHARED |= _long_options(
    _stream_options,
    _message_options,
    _machine_options,
    _training_options,
    evaluation_options.of_searches,
    _evaluation_options,
    [_split_option, normalize_option],
) - {"as", "member", "normalize", "replace", "weights"}

image_options = bundle(
    "work", build_context.alone, _seed_option, *_data_options, _split_option, *_message_options
)
stored_images_options = bundle(
    "work",
    build_context.alone,
    *_data_options,
    allow_code_option,
    store_option,
    *_message_options,
)
