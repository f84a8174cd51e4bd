"""rb-arch: architectures as records."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import click

from rbtools import units
from rbtools.cli import recognised, shared
from rbtools.cli.output import Output
from rbtools.errors import RbError, UsageError
from rbtools.records import SCHEMA, dumps
from rbtools.spaces import SPACES, Space, sized

SHAPE, CLASSES = (3, 32, 32), 10
LISTED = 100_000  # from larger spaces a sample is drawn without listing them
TRIES = 20_000  # architectures that are drawn, at most, for one that --where takes


@shared.command()
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option(
    "--from-checkpoint",
    "checkpoints",
    multiple=True,
    metavar="FILE",
    help="Describe this file of weights, and those that follow: what network each holds is told by its"
    " names and shapes.",
)
@click.option(
    "--arch",
    default=None,
    metavar="LIST",
    help="These, by name: resnet18, nb201-13714, torchvision:NAME, timm:NAME, python:MODULE:FUNCTION,"
    " fcnn:relu/tanh+skip; with"
    " --from-checkpoint, what network the files hold.",
)
@shared.normalize_option
@shared.member_option
@shared.allow_code_option
@click.option(
    "--space",
    "space_name",
    default="nasbench201",
    type=click.Choice(list(SPACES)),
    help="The set of architectures.",
)
@click.option("--unique", is_flag=True, help="One architecture for each class of equal networks (6466).")
@click.option("--index", default=None, metavar="LIST", help="These, in this order: 13714 or 0-9,50.")
@click.option("--str", "string", default=None, metavar="TEXT", help="This one: '|nor_conv_3x3~0|+|...'.")
@click.option(
    "--neighbours",
    default=None,
    metavar="ARCH",
    help="All that differ in one edge from ARCH (an index, a name or a string), edge by edge.",
)
@click.option("--where", default=None, metavar="EXPR", help="Only where this holds: 'kernel_params == 18'.")
@click.option("--sample", default=None, type=click.IntRange(1), metavar="N", help="N of them at random.")
@click.option("--seed", default=0, type=click.IntRange(0), help="Seed of --sample.")
@click.option(
    "--channels", default=None, type=click.IntRange(1), help="Width of the first stage.  [default: 16]"
)
@click.option(
    "--cells", default=None, type=click.IntRange(1), help="Cells in each of three stages.  [default: 5]"
)
@click.option(
    "--width",
    default=None,
    type=click.IntRange(1),
    help="Neurons or channels of every layer, in fcnn and rescnn.  [default: 64]",
)
@click.option(
    "--depth",
    default=None,
    type=click.IntRange(2),
    help="Layers of fcnn and rescnn, the last, linear one among them.  [default: 4]",
)
@click.option("--dataset", default=None, metavar="NAME", help="Count for this data set's images and classes.")
@click.option(
    "--data-dir",
    envvar="RB_DATA",
    default=None,
    metavar="DIR",
    help="Where data sets lie.",
    show_envvar=True,
)
@shared.screen_options
def main(
    files: tuple[str, ...],
    checkpoints: tuple[str, ...],
    arch: str | None,
    normalize: str | None,
    member: str | None,
    allow_code: bool,
    space_name: str,
    unique: bool,
    index: str | None,
    string: str | None,
    neighbours: str | None,
    where: str | None,
    sample: int | None,
    seed: int,
    channels: int | None,
    cells: int | None,
    width: int | None,
    depth: int | None,
    dataset: str | None,
    data_dir: str | None,
    screen: shared.Screen,
) -> int:
    """Write architectures as records, in the published order of their indices.

    Without options, all 15,625 of NAS-Bench-201. Counts ("params", "macs") are for three-channel
    32x32 images and ten classes, or for the images and classes of --dataset. With --from-checkpoint,
    write what files of weights hold, as records that every evaluator takes.

    \b
    Examples:
      rb-arch --unique | wc -l
      rb-arch --sample 16 --where 'kernel_params == 18 and none == 0'
      rb-arch --neighbours 13714 --cells 1 --dataset digits
      rb-arch --arch resnet18,torchvision:resnet50
      rb-arch --space fcnn --depth 3 --width 256 --where 'skips == 1' --sample 20 --dataset digits
      rb-arch --from-checkpoint model.pt | rb-attack fgsm --n 4 --dataset imagefolder:photos
    """
    if checkpoints:
        _refuse_with_files()
        run = {"dataset": dataset, "data_dir": data_dir, "member": member, "allow_code": allow_code}
        found = recognised.records([*checkpoints, *files], arch, normalize, screen, **run)
        return _write(_where(found, where), screen)
    _refuse_without_files(files)
    if sum(option is not None for option in (arch, index, string, neighbours)) > 1:
        raise UsageError(
            "More than one of --arch, --index, --str and --neighbours is given. Choose one of them."
        )
    kept = sized(space_name, depth=depth, width=width if arch is None else None)
    about: dict[str, Any] = {"classes": CLASSES, "shape": SHAPE}
    extra: dict[str, Any] = {}
    if dataset is not None:
        from rbtools import datasets

        described = datasets.describe(dataset, data_dir)
        about, extra = {"classes": described.classes, "shape": described.shape}, {"dataset": described.name}
    size = {"channels": channels, "cells": cells, **about}
    one = arch is not None or index is not None or string is not None or neighbours is not None
    if sample is not None and not one and getattr(kept, "size", 0) > LISTED:
        return _write(_drawn(kept, size, extra, where, sample, seed, screen), screen)
    if arch is not None:
        records = _named(arch, {**size, "width": width}, extra)
    else:
        records = _records(_indices(kept, unique, index, string, neighbours), kept, size, extra)
    chosen = _where(records, where)
    if sample is not None:
        chosen = iter(_sampled(list(chosen), sample, seed, screen))
    return _write(chosen, screen)


FOR_FILES = ("normalize", "member", "allow_code")
NOT_FOR_FILES = (
    *("space_name", "unique", "index", "string", "neighbours", "sample", "seed"),
    *("channels", "cells", "width", "depth"),
)


def _given(names: Iterable[str]) -> str | None:
    """The first of these options that the command line has, as it is typed."""
    context = click.get_current_context()
    flags = {param.name: param.opts[0] for param in context.command.params}
    said = (n for n in names if context.get_parameter_source(n) is click.core.ParameterSource.COMMANDLINE)
    name = next(said, None)
    return None if name is None else flags[name]


def _refuse_with_files() -> None:
    option = _given(NOT_FOR_FILES)
    if option is not None:
        raise UsageError(f"{option} chooses architectures of a space, and --from-checkpoint reads files.")


def _refuse_without_files(files: tuple[str, ...]) -> None:
    if files:
        raise UsageError(
            f"rb-arch reads no records, so {files[0]} means nothing. Did you mean --from-checkpoint?"
        )
    option = _given(FOR_FILES)
    if option is not None:
        raise UsageError(f"{option} is about a file of weights. Add --from-checkpoint FILE.")


def _named(text: str, size: dict[str, Any], extra: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from rbtools import spaces
    from rbtools.engine.checkpoints import named_arch

    for word in filter(None, (part.strip() for part in text.split(","))):
        fields = named_arch(word)
        sizes = {key: size[key] for key in ("channels", "cells", "width") if size[key] is not None}
        takes = {"nasbench201": {"channels", "cells"}, "fcnn": {"width"}, "rescnn": {"width"}}
        if not sizes.keys() <= takes.get(fields["space"], set()):
            raise UsageError(
                f"{word} has no such size: --channels and --cells are for nasbench201, --width for fcnn and"
                " rescnn."
            )
        described = spaces.describe({**fields, **sizes}, size["classes"], size["shape"])
        yield {"schema": SCHEMA, "arch": described, **extra}


def _indices(
    kept: Space, unique: bool, index: str | None, string: str | None, neighbours: str | None
) -> Iterable[int]:
    """The indices that are asked for, before --where and --sample."""
    if index is not None:
        numbers = [kept.find(str(number)) for number in _whole_numbers(index)]
    elif string is not None:
        numbers = [kept.find(string)]
    elif neighbours is not None:
        numbers = kept.neighbours(kept.find(neighbours))
    else:
        return kept.indices(unique)
    allowed = set(kept.indices(True)) if unique else None
    return [number for number in numbers if allowed is None or number in allowed]


def _whole_numbers(text: str) -> list[int]:
    found = units.number_list(text, "--index")
    wrong = [value for value in found if value != int(value)]
    if wrong:
        raise UsageError(f"--index has {wrong[0]:g}. Expected whole numbers, such as 13714 or 0-9,50.")
    return [int(value) for value in found]


def _records(
    indices: Iterable[int], kept: Space, size: dict[str, Any], extra: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    for number in indices:
        yield {"schema": SCHEMA, "arch": kept.arch(number, **size), **extra}


def _where(records: Iterator[dict[str, Any]], text: str | None) -> Iterator[dict[str, Any]]:
    if text is None:
        return records
    from rbtools.records import expr

    try:
        condition = expr.compile(text)
    except RbError as wrong:
        raise UsageError(f"--where: {wrong}") from None

    def holding() -> Iterator[dict[str, Any]]:
        for record in records:
            try:
                if condition.holds(record):
                    yield record
            except RbError as wrong:
                raise UsageError(f"--where: {wrong}") from None

    return holding()


def _sampled(
    records: list[dict[str, Any]], count: int, seed: int, screen: shared.Screen
) -> list[dict[str, Any]]:
    """`count` records in the order they came; a smaller sample is part of a larger one."""
    if count > len(records) > 0:
        screen.warn(f"--sample {count} asks for more than there are ({len(records)}); all are written.")

    def lot(place: int) -> bytes:
        return hashlib.sha256(f"{seed}:{records[place]['arch']['name']}".encode()).digest()

    drawn = sorted(range(len(records)), key=lot)[:count]
    return [records[place] for place in sorted(drawn)]


def _drawn(
    kept: Any,
    size: dict[str, Any],
    extra: dict[str, Any],
    where: str | None,
    count: int,
    seed: int,
    screen: shared.Screen,
) -> Iterator[dict[str, Any]]:
    """`count` records of a space that is too large to be listed, ascending; part of a larger sample too."""
    from rbtools.spaces.residual import drawn

    met = 0

    def meeting() -> Iterator[dict[str, Any]]:
        nonlocal met
        for met, index in enumerate(drawn(kept.size, f"{seed}:{kept.name}{kept.depth}")):
            if met >= TRIES * count:
                return
            yield from _records([index], kept, size, extra)

    found = list(itertools.islice(_where(meeting(), where), count))
    if len(found) < count:
        screen.warn(f"--sample {count} found {len(found)} among {met} architectures that were drawn.")
    yield from sorted(found, key=lambda record: kept.find(record["arch"]["str"]))


def _write(records: Iterator[dict[str, Any]], screen: shared.Screen) -> int:
    output, count, failed = Output(), 0, 0
    try:
        for count, record in enumerate(records, start=1):  # noqa: B007 - counted for the message below
            failed += "error" in record
            output.line(dumps(record))
    finally:
        output.restore()
    if count == 0:
        screen.say("no architecture matches.")
    screen.detail(f"{count} architecture{'s' * (count != 1)}.")
    return shared.FAILED if failed else shared.DONE


if __name__ == "__main__":
    main()
