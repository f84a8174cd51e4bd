"""Ranking records by one number or several, with shared ranks for equals and the unranked last."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rbtools.errors import RbError, UsageError
from rbtools.records import expr
from rbtools.records.metric_name import higher_is_better

Record = Mapping[str, Any]


class SortKey(NamedTuple):
    """What records are ranked by: a metric or an expression, and whether more of it is better."""

    text: str
    higher: bool


def key(item: str, higher: bool | None = None) -> SortKey:
    """Read `EXPR[:lower|higher]`; `higher` is for what does not say it, else the metric's own direction.

    Raises RbError for another word behind the colon.
    """
    text, _, direction = item.rpartition(":")
    if direction in ("lower", "higher") and text:
        return SortKey(text.strip(), direction == "higher")
    if text and expr.is_bare(direction):
        raise UsageError(f"'{direction}' in '{item}' is no direction. Write {text}:lower or {text}:higher.")
    return SortKey(item, higher_is_better(item) if higher is None else higher)


class Ranked(NamedTuple):
    """A record with its place; both `rank` and `value` are None where it has no such number."""

    rank: int | None
    value: float | None
    record: Any


def rank(
    records: Iterable[Any],
    by: Callable[[Any], Any],
    *,
    higher: bool | Sequence[bool] = True,
    top: int | None = None,
) -> list[Ranked]:
    """Order records, or whatever `by` gives a value for, by `by(record)`, the best first.

    Where `by` gives several values (and `higher` is as long), later ones decide between equals. Equal
    values share a rank and the next rank counts them (1, 2, 2, 4); their order is the input's. Records
    without the first value (None or NaN) come last, without a rank; without a later one, last among
    those equal so far. With `top` only so many are kept, also in memory, whatever the length of the stream.

    Raises RbError where a value is not a number, or `top` is below 1.
    """
    if top is not None and top < 1:
        raise RbError(f"The number of records to keep is {top}. It must be 1 or more.")
    directions = (higher,) if isinstance(higher, bool) else tuple(higher)
    valued = (_valued(record, by(record), directions) for record in records)
    ordered = sorted(valued, key=_cost) if top is None else heapq.nsmallest(top, valued, key=_cost)
    return list(_ranked(ordered, directions[0]))


class _Valued(NamedTuple):
    """`costs`: for each value whether it is missing, and a number that is less where it is better."""

    costs: tuple[tuple[bool, float], ...]
    record: Any


def _cost(entry: _Valued) -> tuple[tuple[bool, float], ...]:
    return entry.costs


def _valued(record: Any, values: Any, higher: Sequence[bool]) -> _Valued:
    return _Valued(costs(values if isinstance(values, tuple) else (values,), higher), record)


def costs(values: Sequence[Any], higher: Sequence[bool]) -> tuple[tuple[bool, float], ...]:
    """Values as something to sort by, the best first. Raises RbError for one that is not a number."""
    return tuple(map(_one_cost, values, higher))


def _one_cost(value: Any, higher: bool) -> tuple[bool, float]:
    if value is None or value != value:
        return True, 0.0
    if isinstance(value, (int, float)):
        return False, -value if higher else value
    raise RbError(f"Cannot rank by {value!r}, which is not a number. Rank by a metric such as acc.")


def _ranked(ordered: list[_Valued], higher: bool) -> Iterator[Ranked]:
    place, previous = 0, None
    for position, (costs, record) in enumerate(ordered, start=1):
        missing, cost = costs[0]
        if missing:
            yield Ranked(None, None, record)
            continue
        if costs != previous:
            place, previous = position, costs
        yield Ranked(place, -cost if higher else cost, record)
