"""Confidence intervals for proportions and for differences, in plain Python.

Every accuracy uses these, so nothing heavy is imported: Wilson and MOVER need only a square root,
Clopper-Pearson loads scipy.
"""

from __future__ import annotations

import functools
import math

from rbtools.lazy import special

Interval = tuple[float, float]


@functools.lru_cache(maxsize=64)
def normal_quantile(confidence: float) -> float:
    """z with P(|Z| <= z) = confidence for a standard normal Z: 1.96 for 0.95."""
    from statistics import NormalDist

    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} is not between 0 and 1")
    return NormalDist().inv_cdf((1 + confidence) / 2)


def wilson(successes: float, trials: float, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a proportion (JASA 22, 1927).

    Good for any proportion and for few trials; its ends stay in [0, 1]. The mean coverage is near the nominal
    one, but not above it everywhere: for a guarantee use `clopper_pearson`.
    """
    _check(successes, trials)
    z2 = normal_quantile(confidence) ** 2
    share = successes / trials
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = math.sqrt(z2 * (share * (1 - share) / trials + z2 / (4 * trials**2))) / (1 + z2 / trials)
    # At 0 and at all successes the end is 0 or 1 in exact arithmetic; rounding may miss it.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == trials else min(1.0, centre + half)
    return low, high


def clopper_pearson(successes: float, trials: float, confidence: float = 0.95) -> Interval:
    """The exact interval of a proportion (Biometrika 26, 1934): coverage is at least the confidence.

    [Beta(a/2; k, n-k+1), Beta(1-a/2; k+1, n-k)], a = 1 - confidence; ends 0 and 1 at k = 0 and
    k = n. A fractional `successes`, a sum of values in [0, 1], is accepted.
    """
    _check(successes, trials)
    normal_quantile(confidence)  # refuses a confidence out of range
    tail = (1 - confidence) / 2
    failures = trials - successes
    low = 0.0 if successes <= 0 else float(special.betaincinv(successes, failures + 1, tail))
    high = 1.0 if failures <= 0 else float(special.betaincinv(successes + 1, failures, 1 - tail))
    return low, high


def student_quantile(confidence: float, freedom: int) -> float:
    """t with P(|T| <= t) = confidence for Student's T: 4.30 for 0.95 and 2 degrees of freedom."""
    normal_quantile(confidence)  # refuses a confidence out of range
    x = float(special.betaincinv(freedom / 2, 0.5, 1 - confidence))
    return math.sqrt(freedom * (1 - x) / x)


def mean_interval(
    mean: float, deviation: float, count: int, confidence: float = 0.95, differing: int | None = None
) -> Interval:
    """Interval of a mean of `count` values in [0, 1] with that standard deviation (divisor count - 1).

    If nearly all values are equal, a normal interval is far too short, because the variance comes from the
    few that differ. As in Korn and Graubard (Survey Methodology 24, 1998), the mean is treated as a
    proportion with the number of trials that gives the same variance, deflated by (z/t)^2, where t has
    `differing` - 1 degrees of freedom and `differing` is the number of values that are not the common one at
    the end of the range (default: all). Unlike there, the interval of that proportion is Wilson's, and there
    are at least `count` trials, since no variable in [0, 1] varies more than one that is 0 or 1. Without
    spread it is the exact binomial interval over the values.
    """
    if count < 1:
        raise ValueError("the mean of no values has no interval")
    if count == 1 or deviation == 0 or not 0 < mean < 1:
        return clopper_pearson(min(max(mean, 0.0), 1.0) * count, count, confidence)
    quantile = normal_quantile(confidence)
    student = student_quantile(confidence, max((count if differing is None else differing) - 1, 1))
    trials = mean * (1 - mean) * count / deviation**2 * (quantile / student) ** 2
    trials = max(trials, float(count))
    return wilson(mean * trials, trials, confidence)


def skewed_interval(
    mean: float, deviation: float, skewness: float, count: int, confidence: float = 0.95
) -> Interval:
    """Interval of a mean of `count` values of any range, such as losses, that may have a long tail.

    Student's interval with Hall's cubic transformation of the t statistic (J. R. Stat. Soc. B 54, 1992),
    which corrects its skewness: with values that are mostly small and sometimes large, the mean is too low
    more often than too high. deviation: divisor count - 1; skewness: the third central moment divided by the
    cube of the deviation with divisor count. Needs two values.
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


def square_and_add(first: float, of_first: Interval, second: float, of_second: Interval) -> Interval:
    """Interval of `first - second` from an interval of each, which must be independent.

    Zou and Donner's MOVER (Stat. Med. 27, 2008): the distances from estimate to limit in the same direction
    are squared and added. Unlike a normal interval it keeps the asymmetry of its parts.
    """
    difference = first - second
    below = math.hypot(first - of_first[0], of_second[1] - second)
    above = math.hypot(of_first[1] - first, second - of_second[0])
    return difference - below, difference + above


def _check(successes: float, trials: float) -> None:
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials is no proportion")
