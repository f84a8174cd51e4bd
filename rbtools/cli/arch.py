"""rb-arch: architectures as records."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import click

from rbtools import units
from rbtools.cli import shared
from rbtools.cli.output import Output
from rbtools.errors import RbError, UsageError
from rbtools.records import SCHEMA, dumps
from rbtools.spaces import SPACES, Space, space

SHAPE, CLASSES = (3, 32, 32), 10


@shared.command()
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
    dataset: str | None,
    data_dir: str | None,
    screen: shared.Screen,
) -> int:
    """Write architectures as records, in the published order of their indices.

    Without options, all 15,625 of NAS-Bench-201. Counts ("params", "macs") are for three-channel
    32x32 images and ten classes, or for the images and classes of --dataset.

    \b
    Examples:
      rb-arch --unique | wc -l
      rb-arch --sample 16 --where 'kernel_params == 18 and none == 0'
      rb-arch --neighbours 13714 --cells 1 --dataset digits
    """
    if sum(option is not None for option in (index, string, neighbours)) > 1:
        raise UsageError("More than one of --index, --str and --neighbours is given. Choose one of them.")
    kept = space(space_name)
    about: dict[str, Any] = {"classes": CLASSES, "shape": SHAPE}
    extra: dict[str, Any] = {}
    if dataset is not None:
        from rbtools import datasets

        described = datasets.describe(dataset, data_dir)
        about, extra = {"classes": described.classes, "shape": described.shape}, {"dataset": described.name}
    size = {"channels": channels, "cells": cells, **about}
    records = _records(_indices(kept, unique, index, string, neighbours), kept, size, extra)
    chosen = _where(records, where)
    if sample is not None:
        chosen = iter(_sampled(list(chosen), sample, seed, screen))
    return _write(chosen, screen)


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


def _write(records: Iterator[dict[str, Any]], screen: shared.Screen) -> int:
    output, count = Output(), 0
    try:
        for count, record in enumerate(records, start=1):  # noqa: B007 - counted for the message below
            output.line(dumps(record))
    finally:
        output.restore()
    if count == 0:
        screen.say("no architecture matches.")
    screen.detail(f"{count} architecture{'s' * (count != 1)}.")
    return 0


if __name__ == "__main__":
    main()
