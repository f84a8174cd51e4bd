"""Several objectives: the Pareto front and its hypervolume."""

from __future__ import annotations

from collections.abc import Sequence

from rbtools.scoring import rank_order

Point = tuple[float, ...]
"""One number an objective, more being better."""


def dominates(first: Point, second: Point) -> bool:
    """Whether the first is nowhere worse and somewhere better than the second."""
    return first != second and all(a >= b for a, b in zip(first, second, strict=True))


def front(points: Sequence[Point]) -> list[int]:
    """The positions of the points that no other dominates; of equal points the first, in their order."""
    on = rank_order.front(points, [True] * len(points[0])) if points else []
    firsts = {points[place]: place for place in reversed(range(len(points))) if on[place]}
    return sorted(firsts.values())


def scaled(points: Sequence[Point], low: Point, high: Point) -> list[Point]:
    """The points with each objective scaled from 0 (at `low`) to 1 (at `high`); 1 if both are equal."""
    spans = [(a, b - a) for a, b in zip(low, high, strict=True)]
    return [
        tuple((x - a) / span if span else 1.0 for x, (a, span) in zip(point, spans, strict=True))
        for point in points
    ]


def hypervolume(points: Sequence[Point]) -> float:
    """The volume between the origin and the points; points with a negative number are ignored.

    By slicing along the last objective (Zitzler): exact, and fast for the few points of a front.
    """
    inside = [point for point in points if min(point) >= 0]
    nondominated = [inside[place] for place in front(inside)]
    if not nondominated:
        return 0.0
    if len(nondominated[0]) == 1:
        return max(point[0] for point in nondominated)
    nondominated.sort(key=lambda point: point[-1], reverse=True)
    total = 0.0
    for place, point in enumerate(nondominated):
        below = nondominated[place + 1][-1] if place + 1 < len(nondominated) else 0.0
        if point[-1] > below:
            total += (point[-1] - below) * hypervolume([other[:-1] for other in nondominated[: place + 1]])
    return total
