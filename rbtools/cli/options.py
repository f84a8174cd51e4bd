"""The options that tools share, in bundles that arrive at a command as one object."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from rbtools.cli import build_context, config, evaluation_options, streams
from rbtools.cli.method_options import Decorator, spec_options
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
    **shared: Decorator,
) -> Callable[[F], F]:
    """A bundle of the fields of a dataclass; `make` takes their values in its place.

    `defaults` and `shared`: see `spec_options`.
    """
    return bundle(name, make or cls, *spec_options(cls, defaults or {}, shared))


_files = click.argument("files", nargs=-1, metavar="[FILE]...")
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
    allow_empty_option,
    click.option(
        "--shard",
        default=None,
        metavar="I/N",
        help="Only every N-th result, from the I-th on (1/4 to 4/4), or with --checkpoint its share of the"
        " tiles (batches); auto: the shard of this Slurm task. I/N:places writes a line in place of each"
        " result of another shard, so that the files of all shards can be joined line by line.",
    ),
    click.option("--in-place", is_flag=True, help="Write the records back into the one FILE given."),
)


def _sink_source(errors: str, **options: object) -> RecordSource:
    if "retry" in errors.split(","):
        raise UsageError(
            "--errors retry is for tools that write every record on;"
            f" {click.get_current_context().command_path.split()[0]} reads all records and writes something"
            " else. Leave it out."
        )
    return record_source(errors, **options)


arch_option = click.option(
    "--arch",
    metavar="NAME",
    help="Its architecture: resnet18, nb201-13714, a cell's string, torchvision:NAME, timm:NAME,"
    " repo:OWNER/NAME, robustbench:NAME, or python:MODULE:FUNCTION;"
    " preactresnet18:shortcut=input for a variant.  [default: recognised in the file]",
)
normalize_option = click.option(
    "--normalize",
    metavar="MEAN STD|none|NAME",
    help="Its normalisation, if the file has none: numbers such as 0.49,0.48,0.45 0.25,0.24,0.26, or cifar10,"
    " imagenet ..., or per-image.  [default: the published ones are tried on 256 images,"
    " else asked for; none for python:]",
)

stream_options = bundle("source", record_source, *_stream_options)
_sink_options = (_files, _stop_option, allow_empty_option)
sink_options = bundle("source", _sink_source, *_sink_options)
merge_option = click.option(
    "--merge/--no-merge",
    default=True,
    help="Merge records of the same model; of a metric that several have, the value of more images counts.",
)
merging_sink_options = bundle("source", _sink_source, *_sink_options, merge_option)


def _file_of_weights(context: click.Context, param: click.Parameter, path: str | None) -> str | None:
    """The file; that of a folder as downloads from the Hub have it. Raises UsageError for other folders."""
    if path is None or not os.path.isdir(path):
        return path
    from rbtools.inputs import published_weights  # --help does not need it

    file = published_weights.in_folder(path)
    if file == path:
        names = " or ".join(published_weights.HUB_FILES)
        raise UsageError(
            f"--checkpoint {path} is a folder without {names}. Name a file, or write --weights DIR for"
            " published weights of the records' architectures."
        )
    return file


checkpoint_option = click.option(
    "--checkpoint",
    callback=_file_of_weights,
    metavar="FILE",
    help="Evaluate this checkpoint; no records are read. Published weights have names: "
    " hf:ORG/NAME[@REVISION], timm:NAME, torchvision:NAME[:WEIGHTS]; --download fetches them.",
)
member_option = click.option(
    "--member",
    metavar="NAME",
    help="Which weights, where a file has several: best, ema, cifar10/777 ...",
)
weights_options = (
    click.option(
        "--weights",
        metavar="DIR",
        help="For records without a checkpoint, published weights of nasbench201 by index: 000123-FULL.pth,"
        " or NATS-Bench's 000123.pickle.pbz2.",
    ),
    member_option,
)
source_options = bundle(
    "source",
    record_source,
    *_stream_options,
    checkpoint_option,
    arch_option,
    normalize_option,
)

eps_option = click.option(
    "--eps",
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


tensorboard_option = click.option(
    "--tensorboard",
    metavar="DIR",
    help="Write the curves of all epochs to DIR (pip install 'rbtools[tensorboard]').",
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
    click.option(
        "--force",
        is_flag=True,
        help="Compute again what the store already has, and overwrite results that were measured with another"
        " protocol.",
    ),
    click.option(
        "--dry-run",
        is_flag=True,
        help="Compute nothing; report what would be, and how much the store has.",
    ),
)

allow_code_option = click.option(
    "--allow-code",
    is_flag=True,
    help="Let python:MODULE:NAME, TorchScript and torch.export files run: they are programs.",
)
_data_options = (
    click.option(
        "--dataset",
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


_machine_options = (
    click.option("--device", default="auto", metavar="NAME", help="cpu, cuda, cuda:1, or auto."),
    click.option(
        "--jobs",
        default=None,
        metavar="N|auto",
        help="Worker processes, spread over all GPUs; auto: one for each core, or for each GPU.  [default: 1;"
        " on Ray, as many as fit the cluster]",
    ),
    click.option(
        "--jobs-per-gpu",
        default=None,
        type=click.IntRange(1),
        metavar="N",
        help="Workers on each GPU with --jobs auto and on Ray.  [default: 1]",
    ),
    click.option(
        "--engine",
        default=LOCAL,
        type=click.Choice(tuple(ENGINES)),
        help="Where the workers run: on this machine, or on a Ray cluster (pip install 'rbtools[ray]').",
    ),
    click.option(
        "--ray-address",
        "address",
        metavar="HOST:PORT",
        default=None,
        help="Of the Ray cluster.  [default: RAY_ADDRESS, else one that runs on this machine, else a new"
        " one]",
    ),
    click.option(
        "--unordered",
        is_flag=True,
        help="Write records as they finish, not in input order.",
    ),
    click.option(
        "--threads",
        type=click.IntRange(1),
        default=None,
        help="CPU threads of one model.  [default: 1 for nasbench201, else OMP_NUM_THREADS, else all"
        " cores, which jobs share]",
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
)
_seed_option = click.option("--seed", default=0, type=click.IntRange(0), help="Seed of all random numbers.")


def _work(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """A decorator that hands the run of these options and of those of the machine to a command."""
    return bundle("work", build_context.build_context, *_machine_options, *options)


seeking_options = _work(_seed_option, _training_options[0], *_store_options, *_message_options)
train_options = _work(*_training_options, *_store_options, *_message_options)
_split_option = click.option("--split", default="test", help="Which split to evaluate on.")


_as_option = click.option("--as", "name_as", metavar="NAME", default=None, help="Call the result NAME.")
_evaluation_options = (
    _seed_option,
    *weights_options,
    evaluation_options.n_option,
    evaluation_options.indices_option,
    evaluation_options.batch_option,
    _as_option,
    *_store_options,
    *_message_options,
)
# Entries that are measured again name their split and images; results never come from the store.
verify_options = bundle(
    "work",
    functools.partial(build_context.build_context, force=False, dry_run=False),
    _seed_option,
    *_machine_options,
    *weights_options,
    click.option("--n", type=click.IntRange(1), default=None, help="On N random images of each entry's."),
    evaluation_options.batch_option,
    store_option,
    *_message_options,
)
_verdict_options = (*evaluation_options.of_draws, *evaluation_options.of_stages)
_judging_options = (*_verdict_options, _split_option)
bare_run_options = _work(*evaluation_options.of_draws, _split_option, *_evaluation_options)
run_options = _work(*_judging_options, *_evaluation_options)
search_options = _work(*_judging_options, *evaluation_options.of_searches, *_evaluation_options)
searched_splits_options = _work(
    *_verdict_options,
    *evaluation_options.of_searches,
    *_evaluation_options,
)
both_splits_options = _work(*_verdict_options, *_evaluation_options)
measuring_options = _work(*_evaluation_options)
# The parts of a card have their own names; --precision is of the intervals.
card_options = _work(
    *_verdict_options,
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
) - {"as", "member", "normalize", "weights"}

image_options = bundle(
    "work", build_context.alone, _seed_option, *_data_options, _split_option, *_message_options
)
