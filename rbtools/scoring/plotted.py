"""What figures need computed: rb-plot hands this module to what draws them."""

from __future__ import annotations

from collections.abc import Sequence

from rbtools.scoring import minmax, pareto, plan
from rbtools.scoring.columns import ABSENT


def front(columns: Sequence[Sequence[float]], higher: Sequence[bool]) -> list[int]:
    """The places that no other place beats: as good in every column, and better in one; see `pareto`."""
    return [place for place, on in enumerate(pareto.front(list(zip(*columns, strict=True)), higher)) if on]


def correlations(
    kind: str,
    names: Sequence[str],
    columns: Sequence[Sequence[float | None]],
    rows: Sequence[str],
    cols: Sequence[str],
) -> list[list[float]]:
    """Rank correlations (rows, cols) between the named columns, NaN where there is none; see `correlate`."""
    import numpy as np

    from rbtools.scoring import correlate

    numbers = np.array([[ABSENT if v is None else v for v in column] for column in columns]).T
    found: list[list[float]] = correlate.matrix(kind, names, numbers, rows, cols).value.tolist()
    return found


def scores(
    columns: Sequence[minmax.Column], names: Sequence[str], weights: Sequence[float]
) -> list[float | None]:
    """The composite score in [0, 1] of each place of the columns, None where all values are missing.

    One column a metric; a metric's name says whether more is better. What is missing is left out of a
    record's mean. Raises RbError for a weight that is not positive.
    """
    terms = [
        minmax.Term(name, weight, minmax.higher_is_better(name))
        for name, weight in zip(names, weights, strict=True)
    ]
    return [scored.score for scored in minmax.composite(columns, terms, "renormalise")]


def preset_metrics(preset: str) -> list[str]:
    """The metrics of a preset of rb-score, under the names that they have on most data sets."""
    return [one.item for one in plan.PRESETS[preset].asked] if preset in plan.PRESETS else []
