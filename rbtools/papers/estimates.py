"""Values with 95 % intervals, computed from samples of networks, for the claims of papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Self

RESAMPLES = 200


class WithInterval(float):
    """A value with its 95 % interval. If the interval does not decide a comparison, it stays undecided."""

    low: float
    high: float

    def __new__(cls, value: float, low: float, high: float) -> Self:
        made = super().__new__(cls, value)
        made.low, made.high = low, high
        return made


def ends(value: float) -> tuple[float, float]:
    """The ends of the interval; both are the value itself if there is no interval."""
    return (value.low, value.high) if isinstance(value, WithInterval) else (value, value)


def of_difference(first: float, second: float) -> tuple[float, float]:
    """The interval of `first - second`, if the two are independent."""
    if not (isinstance(first, WithInterval) or isinstance(second, WithInterval)):
        return first - second, first - second
    from rbtools.probabilistic import intervals

    return intervals.square_and_add(first, ends(first), second, ends(second))


def text(value: float) -> str:
    low, high = ends(value)
    return f"{value:.4g}" + (f" [{low:.4g}, {high:.4g}]" if isinstance(value, WithInterval) else "")


def correlations(
    rows: Sequence[Mapping[str, float | None]],
    first: str,
    others: Sequence[str],
    kind: Literal["kendall", "spearman"] = "kendall",
    resamples: int = RESAMPLES,
) -> dict[str, WithInterval]:
    """Rank correlations of a column with other columns, with bootstrap intervals over the rows. Columns with
    too few or too similar rows are left out."""
    import numpy as np

    from rbtools.scoring import correlate

    names = [first, *others]
    numbers = np.array([correlate.floats([row.get(name) for name in names]) for row in rows], float)
    if not len(numbers) or not others:
        return {}
    found = correlate.matrix(kind, names, numbers, [first], others, bootstrap=resamples)
    assert found.low is not None and found.high is not None
    three = zip(others, found.value[0], found.low[0], found.high[0], strict=True)
    return {name: WithInterval(*map(float, ends)) for name, *ends in three if not np.isnan(ends).any()}


def mean(values: Sequence[float] | np.ndarray) -> WithInterval | None:
    """The mean with Student's interval; None for fewer than three values."""
    import numpy as np

    from rbtools.probabilistic import intervals

    if len(values) < 3:
        return None
    centre = float(np.mean(values))
    half = (
        intervals.student_quantile(0.95, len(values) - 1) * float(np.std(values, ddof=1)) / len(values) ** 0.5
    )
    return WithInterval(centre, centre - half, centre + half)


def median(values: Sequence[float]) -> WithInterval | None:
    """The median with its exact binomial interval; None for fewer than six values."""
    from scipy import stats

    if len(values) < 6:
        return None
    ordered, place = sorted(values), int(stats.binom.ppf(0.025, len(values), 0.5))
    return WithInterval(
        (ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2, ordered[place - 1], ordered[-place]
    )
