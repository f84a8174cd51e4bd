"""Confidence intervals for proportions, means and differences. This module imports scipy and numpy only when
they are needed, because every accuracy uses it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rbtools.lazy import np, special
from rbtools.proportions import Interval, check_counts
from rbtools.proportions import normal_quantile as normal_quantile
from rbtools.proportions import wilson as wilson

_GROUPS = 256  # the largest number of different values in the interval of a mean
_STEP = 0.2  # step of its quadrature


def clopper_pearson(successes: float, trials: float, confidence: float = 0.95) -> Interval:
    """Return the exact interval of a proportion by Clopper and Pearson (Biometrika 26, 1934).

    The coverage is at least the confidence. The interval is [Beta(a/2; k, n-k+1), Beta(1-a/2; k+1, n-k)] with
    a = 1 - confidence. `successes` may be fractional, as a sum of values in [0, 1].
    """
    check_counts(successes, trials)
    normal_quantile(confidence)  # refuses a confidence out of range
    tail = (1 - confidence) / 2
    failures = trials - successes
    low = 0.0 if successes <= 0 else float(special.betaincinv(successes, failures + 1, tail))
    high = 1.0 if failures <= 0 else float(special.betaincinv(successes + 1, failures, 1 - tail))
    return low, high


def student_quantile(confidence: float, freedom: int) -> float:
    """Return the quantile t with P(|T| <= t) = confidence for Student's T, such as 4.30 for 0.95 and 2."""
    normal_quantile(confidence)  # refuses a confidence out of range
    x = float(special.betaincinv(freedom / 2, 0.5, 1 - confidence))
    return math.sqrt(freedom * (1 - x) / x)


def mean_interval(
    values: Sequence[float] | np.ndarray,
    counts: Sequence[float] | np.ndarray | None = None,
    confidence: float = 0.95,
) -> Interval:
    """Return the interval of the mean of a distribution on [0, 1], from independent samples `values` (N,),
    each sampled `counts` (N,) times (once by default).

    The interval makes no assumption on the distribution, so it is also valid if rare values matter, such as
    images that always fail and of which the sample contains one or none. Each end is Gaffke's bound at half
    the error ("Three test statistics for a nonparametric one-sided hypothesis on the mean of a nonnegative
    variable", Math. Methods Stat. 14, 2005). The lower end is a quantile of the mean of the samples and an
    additional 0, under uniform Dirichlet weights. For the upper end, the additional value is 1. If all values
    are 0 or 1, the result is the Clopper-Pearson interval, whose coverage is at least the confidence level.
    For other values, this coverage is a conjecture (see also Learned-Miller and Thomas, arXiv:1905.06208;
    Phan, Thomas and Learned-Miller, ICML 2021), and `tests/probabilistic/test_intervals.py` searches for
    exceptions. Intervals by betting (Waudby-Smith and Ramdas, J. R. Stat. Soc. B 86, 2024) have a proven
    coverage, and for many values are sqrt(2 log 40) / 1.96 = 1.39 times as long.

    If there are more than 256 different values, neighbouring values are replaced by their mean. Raises
    ValueError if there are no values, and for values outside [0, 1].
    """
    normal_quantile(confidence)  # refuses a confidence out of range
    drawn = np.asarray(values, float)
    often = np.ones(len(drawn)) if counts is None else np.asarray(counts, float)
    if not often.sum() >= 1 or not ((drawn >= 0) & (drawn <= 1)).all():
        raise ValueError("the interval of a mean needs at least one value, and all values in [0, 1]")
    drawn, often = _grouped(drawn[often > 0], often[often > 0])
    tail = (1 - confidence) / 2
    return _mean_bound(drawn, often, tail), 1 - _mean_bound(1 - drawn, often, tail)


def _grouped(values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different values and the number of samples of each; if too many, the means of _GROUPS groups."""
    different, group = np.unique(values, return_inverse=True)
    if len(different) > _GROUPS:
        scale = (_GROUPS - 1e-9) / (different[-1] - different[0])
        group = ((values - different[0]) * scale).astype(int)
    often = np.bincount(group, weights=counts)
    sums = np.bincount(group, weights=counts * values)
    return np.minimum(sums[often > 0] / often[often > 0], 1.0), often[often > 0]


def _mean_bound(values: np.ndarray, counts: np.ndarray, tail: float) -> float:
    """The `tail` quantile of the mean of the values and an additional 0, under uniform Dirichlet weights."""
    high = float((values * counts).sum() / counts.sum())
    if high == 0:
        return 0.0

    def excess(bound: float) -> float:
        # On the scale of normal quantiles the excess is nearly linear.
        chance = min(max(_mean_below(values, counts, bound), 1e-300), 1 - 1e-16)
        return float(special.ndtri(chance) - special.ndtri(tail))

    low = high
    above = below = excess(high)
    while below > 0:
        high, above = low, below
        low /= 2
        below = excess(low)
    stays = 0
    while high - low > 1e-10 * high:
        middle = (low * above - high * below) / (above - below)
        there = excess(middle)
        if abs(there) < 1e-8:
            return middle
        # The secant method; the value at an end that stays twice is halved (Illinois method).
        if there > 0:
            high, above, below, stays = middle, there, below / 2 if stays < 0 else below, -1
        else:
            low, below, above, stays = middle, there, above / 2 if stays > 0 else above, 1
    return low


def _mean_below(values: np.ndarray, counts: np.ndarray, bound: float) -> float:
    """The probability that the Dirichlet-weighted mean of the values and an additional 0 is below `bound`.

    The weights are proportional to independent exponential variables. The mean is below `bound` if a sum of
    Gamma variables with shapes `counts` and factors 1 - value / bound is positive. The probability is the
    integral of exp(K(z)) / (2 pi i z) over a line through the saddle point, where K is the cumulant
    generating function of the sum (Daniels, Int. Stat. Rev. 55, 1987). A hyperbola with the curvature of the
    path of steepest descent replaces the line, because the trapezoid rule needs few points on this path.
    """
    factors = np.append(1 - values / bound, 1.0)
    shapes = np.append(counts, 1.0)
    low, high = -30.0, 30.0  # limits for the logit of the saddle point, which is below 1 / the largest factor
    for _ in range(22):
        saddle = 1 / (1 + math.exp(-(low + high) / 2))
        slopes = factors / (1 - saddle * factors)
        if float(shapes @ slopes) > 1 / saddle:
            high = (low + high) / 2
        else:
            low = (low + high) / 2
    scale = 1 / math.sqrt(float(shapes @ slopes**2) + 1 / saddle**2)
    skewness = 2 * (float(shapes @ slopes**3) - 1 / saddle**3) * scale**3
    bend = min(max(skewness / 3, -1.0), 1.0)
    y = np.arange(0, 4 if shapes.sum() > 30 else 12, _STEP)
    path = saddle + scale * (1j * np.sinh(y) + bend * (np.cosh(y) - 1))
    logs = -np.log(1 - path[:, None] * factors) @ shapes - np.log(path)
    terms = (np.exp(logs) * (1j * np.cosh(y) + bend * np.sinh(y))).imag
    return float(terms.sum() - terms[0] / 2) * _STEP * scale / math.pi


def skewed_interval(
    mean: float, deviation: float, skewness: float, count: int, confidence: float = 0.95
) -> Interval:
    """Return the interval of the mean of `count` values of any range, such as losses with a long tail.

    The interval is Student's, with Hall's cubic transformation of the t statistic (J. R. Stat. Soc. B 54,
    1992), which corrects the skewness of the t statistic. `deviation` is the standard deviation with divisor
    count - 1. `skewness` is the third central moment divided by the cube of the deviation with divisor count.
    At least two values are necessary.
    """
    if count < 2:
        raise ValueError(f"the mean of {count} values has no interval")
    quantile = student_quantile(confidence, count - 1) / math.sqrt(count)

    def turned(statistic: float) -> float:
        if abs(skewness) < 1e-6:
            return statistic
        root = 1 + skewness * (statistic - skewness / (6 * count))
        return 3 / skewness * (math.copysign(abs(root) ** (1 / 3), root) - 1)

    return mean - deviation * turned(quantile), mean - deviation * turned(-quantile)


OF_IMAGES = "images like those seen"
"""The name of the interval `of_images` in entries."""
OF_IMAGES_VERSION = 4
"""Raised when this interval changes, so that stored intervals are computed again."""


def of_images(numbers: Sequence[float] | np.ndarray, least: float = -math.inf) -> Interval:
    """Return the 95 % interval of the mean of two or more numbers (N,), one per image, cut off below `least`.

    Each end is the outer end of Student's and Hall's intervals. Up to 3/N of all images may be unlike the N
    images of the sample (the rule of three, Hanley and Lippman-Hand, JAMA 249, 1983). Such images are assumed
    to have numbers as extreme as the most extreme number in the sample. Each end is therefore moved outwards
    by 3/N of the distance between the mean and this number. No finite interval can cover the effect of rarer
    images with unbounded numbers.
    """
    values = np.asarray(numbers, float)
    n, mean, deviation = len(values), float(values.mean()), float(values.std())
    skewness = float(((values - mean) ** 3).mean()) / deviation**3 if deviation else 0.0
    widened = deviation * math.sqrt(n / (n - 1))
    ends = [skewed_interval(mean, widened, known, n) for known in (0.0, skewness)]
    low = min(low for low, _ in ends) - 3 / n * (mean - float(values.min()))
    return max(least, low), max(high for _, high in ends) + 3 / n * (float(values.max()) - mean)


def square_and_add(first: float, of_first: Interval, second: float, of_second: Interval) -> Interval:
    """Return the interval of `first - second`, from independent intervals of the two numbers.

    The method is Zou and Donner's MOVER (Stat. Med. 27, 2008): the distance of each end from the difference
    is the root of a sum of two squared distances, one from each interval.
    """
    difference = first - second
    below = math.hypot(first - of_first[0], of_second[1] - second)
    above = math.hypot(of_first[1] - first, second - of_second[0])
    return difference - below, difference + above
