"""Ranks records by one or several numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter, le
from typing import Any, NamedTuple

from rbtools.errors import RbError, UsageError, near, shown
from rbtools.records import expr
from rbtools.records.metric_name import higher_is_better
from rbtools.registry import param

Record = Mapping[str, Any]
# For each value: whether it is missing, and a number that is smaller for better values.
Cost = tuple[tuple[bool, float], ...]


class SortKey(NamedTuple):
    """A sort key: a metric or an expression, and whether higher is better."""

    text: str
    higher: bool


@dataclass(frozen=True, kw_only=True)
class Directions:
    """The options that override the usual direction of metrics, which follows from their names."""

    lower: str | None = param(
        None,
        "Low values of these metrics or expressions are better.  [default: follows from the metric's name;"
        " low for ge.* and seconds_per_epoch, for example]",
        metavar="LIST",
        last=True,
    )
    higher: str | None = param(
        None, "High values of these metrics or expressions are better.", metavar="LIST", last=True
    )

    def named(self, items: Collection[str], option: str) -> dict[str, bool]:
        """Whether higher is better, for the items that the user named. Raises UsageError, which names the
        `option` of the items, if an unknown item is named, or if an item contains a direction."""
        for item in items:
            name, _, word = item.rpartition(":")
            if name and word in ("lower", "higher"):
                raise UsageError(f"'{item}' contains a direction. Write '{name}', and --{word} '{name}'.")
        lower, higher = expr.items(self.lower or ""), expr.items(self.higher or "")
        for flag, named in (("--lower", lower), ("--higher", higher)):
            for name in named:
                if name not in items:
                    raise UsageError(f"{flag} names '{name}', which is not in {option}.{near(name, items)}")
        if both := [name for name in lower if name in higher]:
            raise UsageError(f"--lower and --higher both name '{both[0]}'. Give one of them.")
        return dict.fromkeys(lower, False) | dict.fromkeys(higher, True)

    def sort_keys(self, items: Sequence[str], option: str, others: Sequence[str] = ()) -> list[SortKey]:
        """The items as sort keys; `--lower` and `--higher` may also name the items of other options."""
        named = self.named([*items, *others], option)
        return [SortKey(item, named.get(item, higher_is_better(item))) for item in items]


class Ranked(NamedTuple):
    """A record with its rank. `rank` and `value` are None if the record does not have the number."""

    rank: int | None
    value: float | None
    record: Any


def rank(
    records: Iterable[Any], by: Callable[[Any], Any], *, higher: bool | Sequence[bool] = True
) -> list[Ranked]:
    """Sort records (of any type) by `by(record)`, with the best record first.

    If `by` returns several values, `higher` must be a sequence of the same length, and later values break
    ties. Records with equal values have the same rank and keep the order of the input. The next rank counts
    all of them (1, 2, 2, 4). Records whose first value is None or NaN are last and have no rank. Among tied
    records, those that lack the next value are last. Raises RbError if a value is not a number.
    """
    directions = (higher,) if isinstance(higher, bool) else tuple(higher)

    def valued(record: object) -> tuple[Cost, object]:
        values = by(record)
        return costs(values if isinstance(values, tuple) else (values,), directions), record

    ranked, place, previous = [], 0, None
    for position, (cost, record) in enumerate(sorted(map(valued, records), key=itemgetter(0)), start=1):
        missing, least = cost[0]
        if cost != previous:
            place, previous = position, cost
        value = -least if directions[0] else least
        ranked.append(Ranked(None, None, record) if missing else Ranked(place, value, record))
    return ranked


def costs(values: Sequence[Any], higher: Sequence[bool]) -> Cost:
    """Convert values so that the best value sorts first. Raises RbError if a value is not a number."""

    def cost(value: object, higher: bool) -> tuple[bool, float]:
        if value is None or value != value:
            return True, 0.0
        if isinstance(value, int | float):
            return False, -value if higher else value
        if isinstance(value, dict):
            fields = ", ".join(map(shown, value))
            raise RbError(f"Cannot rank by an object. Name one of its fields after a dot: {fields}.")
        raise RbError(
            f"Cannot rank by {shown(repr(value))}, which is not a number. Rank by a metric such as acc."
        )

    return tuple(map(cost, values, higher))


def bands(intervals: Sequence[tuple[float, float]], higher: bool = True) -> list[int]:
    """The band of each record, where band 1 is the best; `intervals` are in the order of the ranking.

    A band consists of the best record that is not yet in a band, and of the following records whose intervals
    overlap its interval. Two records of a band may differ significantly, but each record of a band could be
    as good as the band's first record.
    """
    bands = [1] * len(intervals)
    pending = list(range(len(intervals)))
    while pending:
        low, high = intervals[pending[0]]
        pending = [p for p in pending if (intervals[p][1] < low if higher else intervals[p][0] > high)]
        for place in pending:
            bands[place] += 1
    return bands


def front(points: Sequence[Sequence[float | None]], higher: Sequence[bool]) -> list[bool]:
    """Whether each point is on the Pareto front: no other point is at least as good in all numbers and better
    in one. A point that lacks a number is not on the front. Equal points are all on the front or all off."""
    on = [False] * len(points)
    best: list[Cost] = []
    # In this order, no point is dominated by a later point: comparing with the front so far is enough.
    for cost, place in sorted((costs(point, higher), place) for place, point in enumerate(points)):
        lacking = any(missing for missing, _ in cost)
        if lacking or any(other != cost and all(map(le, other, cost)) for other in best):
            continue
        on[place] = True
        if len(cost) == 2:
            best = [cost]  # with two objectives, the front's last point has the smallest second cost
        elif not best or best[-1] != cost:
            best.append(cost)
    return on
