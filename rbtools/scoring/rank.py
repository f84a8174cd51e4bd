"""Ranking records by a number, with shared ranks for equals and the unranked last."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from rbtools.errors import RbError

Record = Mapping[str, Any]


class Ranked(NamedTuple):
    """A record with its place; both `rank` and `value` are None where it has no such number."""

    rank: int | None
    value: float | None
    record: Any


def rank(
    records: Iterable[Any], by: Callable[[Any], Any], *, higher: bool = True, top: int | None = None
) -> list[Ranked]:
    """Order records, or whatever `by` gives a value for, by `by(record)`, the best first.

    Equal values share a rank and the next rank counts them (1, 2, 2, 4); their order is the input's.
    Records without a value (None or NaN) come last, without a rank. With `top` only so many are
    kept, also in memory, whatever the length of the stream.

    Raises RbError where a value is not a number, or `top` is below 1.
    """
    if top is not None and top < 1:
        raise RbError(f"The number of records to keep is {top}. It must be 1 or more.")
    valued = _valued(records, by, higher)
    ordered = sorted(valued, key=_key) if top is None else heapq.nsmallest(top, valued, key=_key)
    return list(_ranked(ordered, higher))


class _Valued(NamedTuple):
    missing: bool
    cost: float
    record: Any


def _key(entry: _Valued) -> tuple[bool, float]:
    return entry[:2]


def _valued(records: Iterable[Any], by: Callable[[Any], Any], higher: bool) -> Iterator[_Valued]:
    for record in records:
        value = by(record)
        if value is None or value != value:
            yield _Valued(True, 0.0, record)
        elif isinstance(value, (int, float)):
            yield _Valued(False, -value if higher else value, record)
        else:
            raise RbError(f"Cannot rank by {value!r}, which is not a number. Rank by a metric such as acc.")


def _ranked(ordered: list[_Valued], higher: bool) -> Iterator[Ranked]:
    place, previous = 0, None
    for position, (missing, cost, record) in enumerate(ordered, start=1):
        if missing:
            yield Ranked(None, None, record)
            continue
        if cost != previous:
            place, previous = position, cost
        yield Ranked(place, -cost if higher else cost, record)
