"""Two-phase sampling: a cheap attack on all images, an expensive one on a stratified sample of its survivors.

Survivors are ordered by their margin under the cheap attack and cut into strata (Neyman, J. Am. Stat. Assoc.
33, 1938). The sample of each stratum is simple and random, without replacement, and a prefix of every larger
one. The estimate of how many survivors the expensive attack breaks is the sum over strata of size * broken /
sampled. It is unbiased for a size that was fixed before, if each stratum has a sampled image. A run that
stops at a goal of precision stops sooner if it happens to find few broken images, so its estimate is
optimistic: on average by up to a fifth of the goal (bench/coverage_of_intervals.py). The entry notes this,
and its interval, which holds for all looks together, includes this bias.
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
    """One stratum: how many images it has, how many were sampled, and how many of these were broken."""

    size: int
    sampled: int
    broken: int


class TwoPhaseEstimate(NamedTuple):
    """robust: the estimated number of unbroken images among the n; interval: the interval of this number, at
    the confidence of the call; exact: whether all survivors were sampled."""

    robust: float
    interval: tuple[float, float]
    exact: bool


def order(margins: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The order in which survivors are sampled: (positions (S,), the stratum of each of these (S,)).

    margins: (S,), smaller is nearer to the boundary; keys: (S,), an independent uniform number for each. The
    first N positions are the sample of size N. The first positions are one image of each stratum in turn.
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
    """How many survivors each stratum has."""
    ends = np.cumsum([share for share, _ in _STRATA])
    edges = [0, *(math.ceil(round(end * survivors, 6)) for end in ends[:-1]), survivors]
    return [stop - start for start, stop in itertools.pairwise(edges)]


def strata(survivors: int, stratum: np.ndarray, stands: np.ndarray) -> list[Stratum]:
    """The strata after a sample. stratum: (N,), of each sampled image; stands: (N,), 1 if unbroken."""
    count = len(_STRATA)
    sampled = np.bincount(stratum, minlength=count)
    broken = np.bincount(stratum, weights=1 - stands, minlength=count)
    return [
        Stratum(size, int(some), int(lost))
        for size, some, lost in zip(sizes(survivors), sampled, broken, strict=True)
    ]


def estimate(parts: Sequence[Stratum], confidence: float = 0.95) -> TwoPhaseEstimate:
    """How many images that survived the cheap attack also survive the expensive one.

    The ends of the interval are posterior quantiles of the result of sampling all survivors. Strata have
    independent priors: Beta(1/2, 1/2) for the lower end, Beta(0, 1/2) for the upper one, so that a stratum
    without a broken image in the sample may have no broken image. A stratum without a sampled image, if fewer
    images than strata were sampled, gets the share of all sampled images that broke; for the interval it may
    have lost none or all of its images. Raises ValueError if there are survivors and none was sampled.
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
    """The quantile of the number of broken images among those not sampled, over all strata."""
    total = np.ones(1)
    for part in parts:
        total = np.convolve(total, _unsampled(part, prior))
    return min(int(np.searchsorted(np.cumsum(total), level)), len(total) - 1)


def _unsampled(part: Stratum, prior: float) -> np.ndarray:
    """The distribution of the number of broken images among those not sampled: beta-binomial (R + 1,)."""
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
    """The 95 % interval of the accuracy on the population that the n images are a sample of.

    robust, interval: for the number of unbroken images among the n. Wilson's interval of a count on n images
    and the interval of the count itself are independent; their distances from the estimate are squared and
    added (Zou and Donner, Stat. Med. 27, 2008).
    """
    value = robust / n
    low, high = intervals.wilson(robust, n)
    low = value - math.hypot(value - low, value - interval[0] / n)
    high = value + math.hypot(high - value, interval[1] / n - value)
    return max(low, 0.0), min(high, 1.0)


def looks(survivors: int) -> list[int]:
    """The sample sizes at which a run with a goal of precision checks its interval; the last is all."""
    schedule = []
    size = 48.0
    while size < survivors:
        schedule.append(round(size))
        size *= 1.5
    return [*schedule, survivors]


def confidence_of_look(survivors: int, confidence: float = 0.95) -> float:
    """The confidence of each look so that all looks hold with `confidence`, by Bonferroni's inequality.

    The look at all survivors cannot be wrong.
    """
    return 1 - (1 - confidence) / max(len(looks(survivors)) - 1, 1)
