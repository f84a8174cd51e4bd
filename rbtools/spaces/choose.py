"""Selects architectures of a space by number, condition or random sample, and returns records."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rbtools.errors import RbError, UsageError
from rbtools.records import SCHEMA, expr
from rbtools.spaces import Space
from rbtools.spaces.residual import ResidualSpace, drawn

Record = dict[str, Any]

SHAPE, CLASSES = (3, 32, 32), 10  # for the numbers of multiply-adds, if no data set is given
LISTED = 100_000  # larger spaces are not listed to draw a sample
TRIES = 20_000  # the most random architectures for each one that is requested


def records(
    space: Space,
    numbers: Iterable[int] | None,
    about: Mapping[str, Any],
    extra: Mapping[str, Any],
    *,
    unique: bool = False,
    where: str | None = None,
    sample: int | None = None,
    seed: int = 0,
    warn: Callable[[str], None],
) -> Iterator[Record]:
    """Returns the architectures with the indices `numbers` (None means all) as records, in this order.

    With `unique`, the result contains one architecture for each class of equal architectures. `about`
    contains the arguments of `Space.arch` (classes, shape), and `extra` further fields for every record.
    `where` is a condition on records. `sample` is the number of records to select at random: with the same
    seed, a smaller sample is part of every larger sample. `warn` is called if there are fewer records than
    `sample`. Raises UsageError if the condition cannot be parsed or evaluated.
    """
    if numbers is None and sample is not None and isinstance(space, ResidualSpace) and space.size > LISTED:
        return _drawn(space, about, extra, where, sample, seed, warn)
    if numbers is None:
        numbers = space.indices(unique)
    elif unique:
        allowed = set(space.indices(True))
        numbers = [number for number in numbers if number in allowed]
    return these(_described(space, numbers, about, extra), where, sample, seed, warn)


def these(
    records: Iterable[Record], where: str | None, sample: int | None, seed: int, warn: Callable[[str], None]
) -> Iterator[Record]:
    """Returns the records for which the condition holds, or a sample of these records (see `records`)."""
    chosen = holding(records, where)
    return chosen if sample is None else iter(_sampled(list(chosen), sample, seed, warn))


def holding(records: Iterable[Record], where: str | None) -> Iterator[Record]:
    """Returns the records for which the condition holds. Raises UsageError for an invalid condition."""
    if where is None:
        return iter(records)
    try:
        condition = expr.compile(where)
    except RbError as wrong:
        raise UsageError(f"--where: {wrong}") from None

    def matching() -> Iterator[Record]:
        for record in records:
            try:
                if condition.holds(record):
                    yield record
            except RbError as wrong:
                raise UsageError(f"--where: {wrong}") from None

    return matching()


def _described(
    space: Space, numbers: Iterable[int], about: Mapping[str, Any], extra: Mapping[str, Any]
) -> Iterator[Record]:
    for number in numbers:
        yield {"schema": SCHEMA, "arch": space.arch(number, **about), **extra}


def _sampled(records: list[Record], count: int, seed: int, warn: Callable[[str], None]) -> list[Record]:
    if count > len(records) > 0:
        warn(f"--sample {count} is more than the {len(records)} architectures; all are written.")

    def lot(place: int) -> bytes:
        return hashlib.sha256(f"{seed}:{records[place]['arch']['name']}".encode()).digest()

    by_lot = sorted(range(len(records)), key=lot)[:count]
    return [records[place] for place in sorted(by_lot)]


def _drawn(
    space: ResidualSpace,
    about: Mapping[str, Any],
    extra: Mapping[str, Any],
    where: str | None,
    count: int,
    seed: int,
    warn: Callable[[str], None],
) -> Iterator[Record]:
    """Yields a sample of `count` records, in ascending order, from a space that is too large to be listed."""
    met = 0

    def meeting() -> Iterator[Record]:
        nonlocal met
        for met, index in enumerate(drawn(space.size, f"{seed}:{space.name}{space.depth}")):
            if met >= TRIES * count:
                return
            yield from _described(space, [index], about, extra)

    matching = list(itertools.islice(holding(meeting(), where), count))
    if len(matching) < count:
        warn(f"--sample {count} found only {len(matching)} matches in {met} sampled architectures.")
    yield from sorted(matching, key=lambda record: space.find(record["arch"]["str"]))
