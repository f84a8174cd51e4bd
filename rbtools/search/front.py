"""Several objectives: the Pareto front and its hypervolume."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

from rbtools.scoring import rank_order

T = TypeVar("T")
Point = tuple[float, ...]  # one number for each objective, higher is better


def front(items: Sequence[T], point: Callable[[T], Point]) -> list[T]:
    """Returns the items whose points are not dominated by another point, in order and without duplicates."""
    points = [point(item) for item in items]
    on = rank_order.front(points, [True] * len(points[0])) if points else []
    firsts: dict[Point, T] = {}
    for place, is_on in enumerate(on):
        if is_on:
            firsts.setdefault(points[place], items[place])
    return list(firsts.values())


def scaled(points: Sequence[Point], low: Point, high: Point) -> list[Point]:
    """Scale each objective from 0 at `low` to 1 at `high`. If `low` equals `high`, the result is 1."""
    spans = [(a, b - a) for a, b in zip(low, high, strict=True)]
    return [
        tuple((x - a) / span if span else 1.0 for x, (a, span) in zip(point, spans, strict=True))
        for point in points
    ]


def hypervolume(points: Sequence[Point]) -> float:
    """Returns the volume between the origin and the points. Points with negative coordinates are ignored.

    The region is cut into slices along the last objective (Zitzler), which is exact, and fast for small
    fronts.
    """
    nondominated = front([point for point in points if min(point) >= 0], tuple)
    if not nondominated:
        return 0.0
    if len(nondominated[0]) == 1:
        return nondominated[0][0]
    nondominated.sort(key=lambda point: point[-1], reverse=True)
    heights = [point[-1] for point in nondominated]
    return sum(
        (height - below) * hypervolume([point[:-1] for point in nondominated[: place + 1]])
        for place, (height, below) in enumerate(pairwise([*heights, 0.0]))
        if height > below
    )
