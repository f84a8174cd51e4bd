"""Two-phase sampling: a cheap attack on all images, an expensive attack on a sample of its survivors.

The images that survive the cheap attack are ordered by their margin and divided into strata (Neyman, J. Am.
Stat. Assoc. 33, 1938). The sample of each stratum is random, without replacement, and every larger sample
contains all smaller samples. The estimated number of survivors that the expensive attack breaks is the sum of
size * broken / sampled over the strata. The estimate is unbiased if the sample size was fixed in advance and
each stratum has a sampled image. A run that stops at a goal of precision stops earlier if it happens to find
few broken images. The estimate of such a run is too optimistic, on average by up to a fifth of the goal
(bench/coverage_of_intervals.py). The entry states this bias, and the interval in the entry is valid for all
checks together and includes the bias.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from rbtools.lazy import np, special
from rbtools.probabilistic import intervals

VERSION = 1
"""Version of the order of the sample; entries contain it."""

FIXED = "stratified by margin"
STOPPED = (
    "stratified by margin, stopped at the goal: the value is optimistic on average, by up to a fifth of the"
    " goal; the interval is for all looks together"
)
"""Names of the estimators in an entry: for a fixed sample size, and for a goal of precision."""

# For each stratum, from the smallest margin on: its share of the survivors, and its share that is expected to
# break. A stratum's sample is proportional to its size times the standard deviation of its outcomes.
_STRATA = ((0.05, 0.4), (0.15, 0.1), (0.8, 0.01))
_PRIOR = 1 / 2  # Jeffreys' prior; with 1/3 the coverage falls to .89 if the margin predicts nothing


class Stratum(NamedTuple):
    """The numbers of all images, of sampled images and of broken sampled images in a stratum."""

    size: int
    sampled: int
    broken: int


class TwoPhaseEstimate(NamedTuple):
    """The estimated number of unbroken images, with its interval. If `exact`, all survivors were sampled."""

    robust: float
    interval: tuple[float, float]
    exact: bool


def order(margins: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the order for sampling survivors: positions (S,), and the stratum of each position (S,). It
    begins with one image of each stratum.

    `margins` (S,) are smaller for images nearer to the boundary, and `keys` (S,) are independent uniform
    numbers. A sample of size N consists of the first N positions.
    """
    by_margin = np.lexsort((keys, margins))
    stratum = np.empty(len(margins), np.int64)
    time = np.empty(len(margins))
    start = 0
    for number, size in enumerate(sizes(len(margins))):
        rows = by_margin[start : start + size]
        stratum[rows] = number
        broken = _STRATA[number][1]
        rate = size * math.sqrt(broken * (1 - broken))
        shuffled = rows[np.argsort(keys[rows], kind="stable")]
        # The first image of each stratum comes before the second of any.
        time[shuffled] = np.arange(size) / rate if size else 0
        start += size
    sequence = np.lexsort((stratum, time))
    return sequence, stratum[sequence]


def sizes(survivors: int) -> list[int]:
    ends = np.cumsum([share for share, _ in _STRATA])
    edges = [0, *(math.ceil(round(end * survivors, 6)) for end in ends[:-1]), survivors]
    return [stop - start for start, stop in itertools.pairwise(edges)]


def strata(survivors: int, stratum: np.ndarray, stands: np.ndarray) -> list[Stratum]:
    """Return the strata after a sample. `stands` (N,) is 1 for each sampled image that is unbroken."""
    count = len(_STRATA)
    sampled = np.bincount(stratum, minlength=count)
    broken = np.bincount(stratum, weights=1 - stands, minlength=count)
    return [
        Stratum(size, int(some), int(lost))
        for size, some, lost in zip(sizes(survivors), sampled, broken, strict=True)
    ]


def estimate(parts: Sequence[Stratum], confidence: float = 0.95) -> TwoPhaseEstimate:
    """Return the number of images that survive both the cheap and the expensive attack.

    The ends of the interval are posterior quantiles of the result of sampling all survivors. Strata have
    independent priors: Beta(1/2, 1/2) for the lower end and Beta(0, 1/2) for the upper end. With the second
    prior, a stratum without a broken image in its sample may contain no broken image. For a stratum without a
    sampled image, the estimate uses the fraction of broken images among all sampled images, and the interval
    assumes that none or all images of the stratum are broken. Raises ValueError if there are survivors but no
    sampled image.
    """
    survivors, seen = sum(part.size for part in parts), sum(part.broken for part in parts)
    sampled = sum(part.sampled for part in parts)
    if survivors and not sampled:
        raise ValueError("no survivor was sampled, so the number of unbroken images is unknown")
    unknown = sum(part.size for part in parts if not part.sampled)
    parts = [part for part in parts if part.sampled]
    lost = sum(part.size * part.broken / part.sampled for part in parts)
    lost += unknown * seen / sampled if unknown else 0
    tail = (1 - confidence) / 2
    least = seen + _quantile(parts, 0.0, tail)
    most = seen + _quantile(parts, _PRIOR, 1 - tail) + unknown
    exact = not unknown and all(part.sampled == part.size for part in parts)
    interval = (survivors - max(float(most), lost), survivors - min(float(least), lost))
    return TwoPhaseEstimate(survivors - lost, interval, exact)


def _quantile(parts: Sequence[Stratum], prior: float, level: float) -> int:
    """The quantile of the number of broken images among all images that were not sampled."""
    total = np.ones(1)
    for part in parts:
        total = np.convolve(total, _unsampled(part, prior))
    return min(int(np.searchsorted(np.cumsum(total), level)), len(total) - 1)


def _unsampled(part: Stratum, prior: float) -> np.ndarray:
    """The beta-binomial distribution (R + 1,) of the number of broken images among R unsampled images."""
    remaining = part.size - part.sampled
    broken = np.arange(remaining + 1)
    a, b = prior + part.broken, _PRIOR + part.sampled - part.broken
    if a == 0:  # all probability is at 0
        nothing: np.ndarray = np.eye(1, remaining + 1)[0]
        return nothing
    choose = -special.betaln(broken + 1, remaining - broken + 1) - math.log(remaining + 1)
    shares: np.ndarray = np.exp(
        choose + special.betaln(broken + a, remaining - broken + b) - special.betaln(a, b)
    )
    return shares


def population_interval(robust: float, interval: tuple[float, float], n: int) -> tuple[float, float]:
    """Return the 95 % interval of the accuracy on the population from which the n images are a sample.
    `robust` and `interval` are for the number of unbroken images among the n images. The distances of the
    limits of this interval and of Wilson's interval from the estimate are combined as the root of the sum of
    squares (Zou and Donner, Stat. Med. 27, 2008)."""
    value = robust / n
    low, high = intervals.wilson(robust, n)
    low = value - math.hypot(value - low, value - interval[0] / n)
    high = value + math.hypot(high - value, interval[1] / n - value)
    return max(low, 0.0), min(high, 1.0)


def looks(survivors: int) -> list[int]:
    """Return the sample sizes at which a run with a goal of precision checks its interval; the last one is
    the number of all survivors."""
    schedule = []
    size = 48.0
    while size < survivors:
        schedule.append(round(size))
        size *= 1.5
    return [*schedule, survivors]


def confidence_of_look(survivors: int) -> float:
    """Return the confidence of each check, with which all checks are valid at 95 % (Bonferroni's inequality).
    The check of all survivors cannot be wrong and is not counted."""
    return 1 - (1 - 0.95) / max(len(looks(survivors)) - 1, 1)
