"""Rank bands: records whose order the measurement does not tell."""

from __future__ import annotations

from collections.abc import Sequence


def bands(intervals: Sequence[tuple[float, float]], higher: bool = True) -> list[int]:
    """The band of each record, 1 the best; `intervals` stand in the order of the ranking.

    A band is the best record that has none yet, and those after it whose interval overlaps its
    interval. Within a band some may be told apart, but each could be as good as its first.
    """
    places = [0] * len(intervals)
    pending = list(range(len(intervals)))
    band = 0
    while pending:
        band += 1
        low, high = intervals[pending[0]]
        rest = []
        for place in pending:
            worse = intervals[place][1] < low if higher else intervals[place][0] > high
            if worse:
                rest.append(place)
            else:
                places[place] = band
        pending = rest
    return places
