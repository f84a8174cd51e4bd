"""The interval of a mean of numbers of any range, one for each image, of which a few may decide."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rbtools.lazy import np
from rbtools.probabilistic import intervals

OF = "images like those seen"
"""What the interval is of, for entries."""
VERSION = 4
"""Raised when the interval changes, so that stored ones are made anew."""


def of_images(numbers: Sequence[float] | np.ndarray, least: float = -math.inf) -> intervals.Interval:
    """The 95 % interval of the mean of numbers (N,), two or more; none is below `least`.

    The wider of Student's and Hall's ends. Images unlike any that was seen may be up to 3/N of all (the rule
    of three, Hanley and Lippman-Hand, JAMA 249, 1983), and are taken for as extreme as the most extreme one:
    each end is further out by 3/N of the distance to that. Images that are rarer than some 3/N and far more
    extreme are in no interval, and without a bound on the numbers in none that is finite.
    """
    values = np.asarray(numbers, float)
    n, mean, deviation = len(values), float(values.mean()), float(values.std())
    skewness = float(((values - mean) ** 3).mean()) / deviation**3 if deviation else 0.0
    widened = deviation * math.sqrt(n / (n - 1))
    ends = [intervals.skewed_interval(mean, widened, known, n) for known in (0.0, skewness)]
    low = min(low for low, _ in ends) - 3 / n * (mean - float(values.min()))
    return max(least, low), max(high for _, high in ends) + 3 / n * (float(values.max()) - mean)
