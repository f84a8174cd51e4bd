"""What figures need computed: rb-plot hands this module to what draws them."""

from __future__ import annotations

from collections.abc import Sequence

from rbtools.scoring import minmax


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
