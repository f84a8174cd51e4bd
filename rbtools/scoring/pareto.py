"""The Pareto front: points that no other is as good as everywhere and better than somewhere."""

from __future__ import annotations

from collections.abc import Sequence


def front(points: Sequence[Sequence[float | None]], higher: Sequence[bool]) -> list[bool]:
    """Which points are on the front. One that lacks a number is not; equal ones are on it together."""
    costs = []
    for place, point in enumerate(points):
        values = [value for value in point if value is not None and value == value]
        if len(values) == len(point):
            signed = tuple(-value if up else value for value, up in zip(values, higher, strict=True))
            costs.append((signed, place))
    on = [False] * len(points)
    best: list[tuple[float, ...]] = []
    # In this order nothing is beaten by what comes after it, so looking at the front so far is enough.
    for cost, place in sorted(costs):
        if not any(_beats(other, cost) for other in best):
            on[place] = True
            if len(cost) == 2:
                best = [cost]  # of two numbers the last on the front has the least second one
            elif not best or best[-1] != cost:
                best.append(cost)
    return on


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))
