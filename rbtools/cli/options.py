"""The options that tools share, in bundles that arrive at a command as one object."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from rbtools.cli import build_context, config, effective_config, streams
from rbtools.cli.method_options import Decorator, spec_options
from rbtools.cli.source import RecordSource
from rbtools.errors import UsageError
from rbtools.execution import ENGINES, LOCAL

F = TypeVar("F", bound=Callable[..., Any])


def record_source(**options: object) -> RecordSource:
    """The records that the command works on."""
    return streams.of_command().source(**options)


def bundle(name: str, make: Callable[..., Any], *options: Callable[[Any], Any]) -> Callable[[F], F]:
    """A decorator that adds options and hands their values to the command as one object."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def command_(**kwargs: object) -> object:
            own = {key: kwargs.pop(key) for key in keys}
            return function(**kwargs, **{name: make(**own)})

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

    `defaults` replaces defaults of fields; `shared` has the options of fields that are no `param`.
    """
    return bundle(name, make or cls, *spec_options(cls, defaults or {}, shared))


_files = click.argument("files", nargs=-1, metavar="[FILE]...")
_strict = click.option("--strict", is_flag=True, help="Stop at the first bad line or failed record.")
allow_empty_option = click.option(
    "--allow-empty", is_flag=True, help="End with status 0, not 3, where no records come in."
)
_stream_options = (
    _files,
    _strict,
    allow_empty_option,
    click.option("--retry-errors", is_flag=True, help="Process records that failed before."),
    click.option(
        "--shard",
        default=None,
        metavar="I/N",
        help="Only every N-th record, from the I-th on (1/4 to 4/4), or with --checkpoint its share of the"
        " images; auto: the shard of this Slurm task.",
    ),
    click.option("--in-place", is_flag=True, help="Write the records back into the one FILE given."),
)


def gone(name: str, instead: str) -> Callable[[F], F]:
    """An option that there is no more, hidden: typing it says what to do instead."""

    def refuse(context: click.Context, param: click.Parameter, value: object) -> None:
        if value is not None:
            raise UsageError(f"{name} is gone. {instead}")

    return click.option(name, default=None, hidden=True, expose_value=False, callback=refuse)


def _refused(context: click.Context, param: click.Parameter, value: object) -> None:
    """Refuse an option of the tools that write each record on, by its name."""
    if value:
        raise UsageError(
            f"{param.opts[0]} is for tools that write every record on; {context.command_path.split()[0]}"
            " reads all records and writes something else. Leave it out."
        )


# Hidden: typing one gives the reason why the tool does not have it.
_refused_options = tuple(
    click.option(
        name,
        is_flag=flag,
        hidden=True,
        expose_value=False,
        callback=_refused,
        help="Refused: not for this tool.",
    )
    for name, flag in (("--retry-errors", True), ("--shard", False), ("--in-place", True))
)

arch_option = click.option(
    "--arch",
    metavar="NAME",
    help="Its architecture: resnet18, nb201-13714, a cell's string, torchvision:NAME, timm:NAME,"
    " repo:OWNER/NAME, robustbench:NAME, open_clip:NAME (with --prompts), or python:MODULE:FUNCTION;"
    " preactresnet18:shortcut=input for a variant.  [default: recognised in the file]",
)
normalize_option = click.option(
    "--normalize",
    metavar="MEAN STD|none|NAME",
    help="Its normalisation, if the file has none: numbers such as 0.49,0.48,0.45 0.25,0.24,0.26, or"
    " cifar10, imagenet ..., or per-image.  [default: inferred from its BatchNorm layers, else what all"
    " publish for such weights, else asked for; none for python:]",
)

prompts_option = click.option(
    "--prompts",
    metavar="FILE",
    help="With --arch open_clip:NAME, the classes of the zero-shot classifier: a line for each, and templates"
    " such as 'a photo of a {}.', or JSON.",
)

stream_options = bundle("source", record_source, *_stream_options)
sink_options = bundle("source", record_source, _files, _strict, allow_empty_option, *_refused_options)
merge_option = click.option(
    "--merge/--no-merge",
    default=True,
    help="Merge records of the same model; of a metric that several have, the value of more images counts.",
)
merging_sink_options = bundle(
    "source", record_source, _files, _strict, allow_empty_option, merge_option, *_refused_options
)
source_options = bundle(
    "source",
    record_source,
    *_stream_options,
    click.option(
        "--checkpoint",
        metavar="FILE",
        help="Evaluate this checkpoint; no records are read. Published weights have names:"
        " hf:ORG/NAME[@REVISION], timm:NAME, torchvision:NAME[:WEIGHTS]; --download fetches them.",
    ),
    arch_option,
    normalize_option,
    prompts_option,
)

eps_option = click.option(
    "--eps",
    default="8",
    metavar="LIST",
    help="Distances to attack at: in 1/255 for L-infinity (8, 8/255, 1-4, 1,2,8), on [0, 1] for L2.",
)

_word_options = (
    click.option("--quiet", "-q", is_flag=True, help="Print only warnings and errors on stderr."),
    click.option(
        "--verbose",
        "-v",
        is_flag=True,
        help="Print more on stderr, such as the seconds of each stage.",
    ),
    click.option(
        "--log", metavar="FILE", default=None, help="Append events to FILE, one JSON object per line."
    ),
    click.option(
        "--config",
        metavar="FILE",
        envvar=config.VARIABLE,
        expose_value=False,
        help="Defaults for options, as YAML; none for no file.  [default: rbtools.yaml here, over"
        " rbtools/config.yaml in XDG_CONFIG_HOME]",
    ),
    click.option(
        "--print-config",
        is_flag=True,
        expose_value=False,
        callback=effective_config.asked,
        help="Print the value of every option and its origin, and exit.",
    ),
)

screen_options = bundle("screen", build_context.terminal, *_word_options)


store_option = click.option(
    "--store",
    envvar="RB_STORE",
    default="rb-store",
    metavar="DIR",
    show_envvar=True,
    help="Folder of stored results and checkpoints.",
)

_store_options = (
    store_option,
    click.option("--no-store", is_flag=True, help="Neither write nor read the store."),
    click.option("--force", is_flag=True, help="Compute again what the store already has."),
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
member_option = click.option(
    "--member",
    metavar="NAME",
    default=None,
    help="Which weights, where a file has several: best, ema, cifar10 or cifar10/777 ...",
)

_data_options = (
    click.option(
        "--dataset",
        metavar="NAME",
        default=None,
        help="digits, cifar10, cifar10-c:fog.3 ..., imagefolder:PATH, npz:PATH, parquet:PATH or"
        " python:MODULE:CLASS."
        "  [default: the record's, else digits]",
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
        default=None,
        metavar="FILE",
        help="JSON file from class folder to class number, if the checkpoint's order is not alphabetical.",
    ),
)


def _address_of_ray(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    engine = context.params["engine"]
    if value is not None and engine != "ray":
        raise UsageError(f"--ray-address names a Ray cluster, but the engine is {engine}. Add --engine ray.")
    return value


_machine_options = (
    click.option("--device", default="auto", metavar="NAME", help="cpu, cuda, cuda:1, or auto."),
    click.option(
        "--jobs",
        default=None,
        metavar="N",
        help="Worker processes, spread over all GPUs; auto: one for each core, or for each GPU."
        "  [default: 1; with --engine ray, as many as fit the cluster]",
    ),
    click.option(
        "--jobs-per-gpu",
        default=None,
        type=click.IntRange(1),
        metavar="N",
        help="Workers on each GPU with --jobs auto, and with --engine ray.  [default: 1]",
    ),
    click.option(
        "--engine",
        default=LOCAL,
        type=click.Choice(tuple(ENGINES)),
        is_eager=True,  # the address is checked against it
        help="Where workers run: on this machine, or on a Ray cluster (pip install 'rbtools[ray]').",
    ),
    click.option(
        "--ray-address",
        "address",
        metavar="HOST:PORT",
        default=None,
        callback=_address_of_ray,
        help="The Ray cluster.  [default: RAY_ADDRESS, else one that runs on this machine, else a new one]",
    ),
    click.option("--unordered", is_flag=True, help="Write records as they finish, not in input order."),
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
        help="Precision of the networks; weights and losses stay float32. auto: bf16 where the machine has"
        " it and images have 16 pixels a side or more.",
    ),
    click.option(
        "--prepare/--no-prepare",
        default=True,
        help="Attack a copy with BatchNorm folded, channels last and in --precision.",
    ),
)
_seed_option = click.option("--seed", default=0, type=click.IntRange(0), help="Seed of all random numbers.")
seeking_options = bundle(
    "work",
    build_context.build_context,
    _seed_option,
    *_machine_options,
    _training_options[0],
    *_store_options,
    *_word_options,
)
train_options = bundle(
    "work",
    build_context.build_context,
    *_machine_options,
    *_training_options,
    *_store_options,
    *_word_options,
)
_split_option = click.option("--split", default="test", help="Which split to evaluate on.")
_n_option = click.option(
    "--n", type=click.IntRange(1), default=None, help="Use N images, balanced over classes."
)
_batch_option = click.option(
    "--batch", type=click.IntRange(1), default=None, help="Images at a time; changes memory, not results."
)
_evaluation_options = (
    click.option(
        "--weights",
        metavar="DIR",
        default=None,
        help="Published weights of nasbench201 by index: 000123-FULL.pth, or NATS-Bench's"
        " 000123.pickle.pbz2. For records without a checkpoint.",
    ),
    member_option,
    _n_option,
    _batch_option,
    click.option("--as", "name_as", metavar="NAME", default=None, help="Call the result NAME."),
    click.option("--replace", is_flag=True, help="Overwrite a result measured with another protocol."),
    *_store_options,
    *_word_options,
)
_indices_option = click.option(
    "--indices",
    default=None,
    metavar="LIST|FILE",
    help="Only the images with these numbers in the split: 0-999 are its first 1,000. Or a FILE that holds"
    " them (FILE:KEY for one of its lists).",
)
_search_options = (
    click.option(
        "--precision",
        default="auto",
        type=click.Choice(("auto", "fp32", "bf16")),
        help="Precision of attack searches; success is decided in float32. auto: bf16 where the machine has"
        " it.",
    ),
    click.option(
        "--prepare/--no-prepare",
        default=True,
        help="Search on a copy with BatchNorm folded, channels last and in --precision.",
    ),
    click.option(
        "--compile",
        is_flag=True,
        help="Compile that copy with torch.compile, and use that where its passes are faster.",
    ),
)
# What is measured again says itself on which split and images, and never comes from the store.
verify_options = bundle(
    "work",
    functools.partial(build_context.build_context, no_store=False, force=False, dry_run=False),
    _seed_option,
    *_machine_options,
    member_option,
    click.option("--n", type=click.IntRange(1), default=None, help="On N random images of each entry's."),
    _batch_option,
    store_option,
    *_word_options,
)
run_options = bundle(
    "work",
    build_context.build_context,
    _seed_option,
    *_machine_options,
    _split_option,
    _indices_option,
    *_evaluation_options,
)
search_options = bundle(
    "work",
    build_context.build_context,
    _seed_option,
    *_machine_options,
    _split_option,
    _indices_option,
    *_search_options,
    *_evaluation_options,
)
searched_splits_options = bundle(
    "work",
    build_context.build_context,
    _seed_option,
    *_machine_options,
    _indices_option,
    *_search_options,
    *_evaluation_options,
)
both_splits_options = bundle(
    "work",
    build_context.build_context,
    _seed_option,
    *_machine_options,
    _indices_option,
    *_evaluation_options,
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
    _word_options,
    _machine_options,
    _training_options,
    _search_options,
    _evaluation_options,
    [_seed_option, _split_option, _indices_option, normalize_option],
) - {"as", "member", "normalize", "replace", "weights"}

image_options = bundle(
    "work",
    build_context.alone,
    _seed_option,
    *_data_options,
    _split_option,
    *_word_options,
)
