"""Which architectures of a space: by number, by condition, by lot; as records."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rbtools.errors import RbError, UsageError
from rbtools.records import SCHEMA, expr
from rbtools.spaces import Space
from rbtools.spaces.residual import drawn

Record = dict[str, Any]

SHAPE, CLASSES = (3, 32, 32), 10
"""The images and classes that costs are counted for where no data set is named."""

LISTED = 100_000  # from larger spaces a sample is drawn without listing them
TRIES = 20_000  # architectures that are drawn, at most, for one that the condition takes


def records(
    kept: Space,
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
    """The architectures `numbers` of a space (None: all) as records; with `unique` one a class of equal ones.

    about: what `Space.arch` takes (classes, shape); extra: further fields of every record.
    `where` keeps those for which a condition holds. `sample` keeps so many by lot, in their order: a smaller
    sample is part of a larger one of the same seed, and where there are fewer, `warn` is told.
    Raises UsageError for a condition that cannot be read or asks for what the records have not.
    """
    if numbers is None and sample is not None and getattr(kept, "size", 0) > LISTED:
        return _drawn(kept, about, extra, where, sample, seed, warn)
    if numbers is None:
        numbers = kept.indices(unique)
    elif unique:
        allowed = set(kept.indices(True))
        numbers = [number for number in numbers if number in allowed]
    return these(_described(kept, numbers, about, extra), where, sample, seed, warn)


def these(
    found: Iterable[Record], where: str | None, sample: int | None, seed: int, warn: Callable[[str], None]
) -> Iterator[Record]:
    """Of the records those for which the condition holds, and of these so many by lot; see `records`."""
    chosen = holding(found, where)
    return chosen if sample is None else iter(_sampled(list(chosen), sample, seed, warn))


def holding(found: Iterable[Record], where: str | None) -> Iterator[Record]:
    """The records for which the condition holds. Raises UsageError where it cannot be told."""
    if where is None:
        return iter(found)
    try:
        condition = expr.compile(where)
    except RbError as wrong:
        raise UsageError(f"--where: {wrong}") from None

    def those() -> Iterator[Record]:
        for record in found:
            try:
                if condition.holds(record):
                    yield record
            except RbError as wrong:
                raise UsageError(f"--where: {wrong}") from None

    return those()


def _described(
    kept: Space, numbers: Iterable[int], about: Mapping[str, Any], extra: Mapping[str, Any]
) -> Iterator[Record]:
    for number in numbers:
        yield {"schema": SCHEMA, "arch": kept.arch(number, **about), **extra}


def _sampled(found: list[Record], count: int, seed: int, warn: Callable[[str], None]) -> list[Record]:
    """`count` records in the order they came."""
    if count > len(found) > 0:
        warn(f"--sample {count} asks for more than there are ({len(found)}); all are written.")

    def lot(place: int) -> bytes:
        return hashlib.sha256(f"{seed}:{found[place]['arch']['name']}".encode()).digest()

    by_lot = sorted(range(len(found)), key=lot)[:count]
    return [found[place] for place in sorted(by_lot)]


def _drawn(
    kept: Any,
    about: Mapping[str, Any],
    extra: Mapping[str, Any],
    where: str | None,
    count: int,
    seed: int,
    warn: Callable[[str], None],
) -> Iterator[Record]:
    """`count` records of a space that is too large to be listed, ascending."""
    met = 0

    def meeting() -> Iterator[Record]:
        nonlocal met
        for met, index in enumerate(drawn(kept.size, f"{seed}:{kept.name}{kept.depth}")):
            if met >= TRIES * count:
                return
            yield from _described(kept, [index], about, extra)

    found = list(itertools.islice(holding(meeting(), where), count))
    if len(found) < count:
        warn(f"--sample {count} found {len(found)} among {met} architectures that were drawn.")
    yield from sorted(found, key=lambda record: kept.find(record["arch"]["str"]))
