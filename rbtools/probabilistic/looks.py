"""Intervals that hold however often somebody looks, and whenever they stop: those of planned looks.

A measurement looks at its interval at numbers of images that are fixed before, such as 16, 32, 64 ... With
K of them each interval has the error alpha / K, so that with probability 1 - alpha all of them hold together,
by Bonferroni's inequality: a confidence sequence on these looks. It may end at any of them, for any reason. A
confidence sequence for every number of images is longer: the one of a mixture of Beta(1/2, 1/2) is 3.65
standard errors of each side for 1,000 images, seven looks are 2.69.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rbtools.lazy import np
from rbtools.probabilistic import intervals, two_phase
from rbtools.proportions import Interval

VERSION = 1
_FACTOR = 2
NEARLY_ALL = 0.75


class AnytimeInterval(NamedTuple):
    """Of the mean over the source of the images, and of the mean over all images of the data set."""

    of_source: Interval
    of_all: Interval


def sizes(first: int, most: int, factor: float = _FACTOR) -> list[int]:
    """The numbers of images of planned looks: first, twice as many, and so on; the last is `most`.

    None is at more than three quarters of all images, since all of them tell it soon after. Where nearly all
    were seen, the correction for a finite population makes intervals too short: after 64 of 65 images with
    one error or none left.
    """
    planned, size = [], float(first)
    while round(size) <= NEARLY_ALL * most:
        planned.append(round(size))
        size *= factor
    return [*planned, most]


def confidence(looks: int, together: float = 0.95) -> float:
    """The confidence of each of so many looks with which all of them hold together."""
    return 1 - (1 - together) / looks


def of_mean(values: Sequence[float] | np.ndarray, seen: float, sure: float) -> AnytimeInterval:
    """The intervals of the mean of values in [0, 1], one an image (n,).

    Of the source it is Gaffke's, of zeros and ones Clopper and Pearson's. seen: the share of all images that
    was evaluated. sure: the confidence of this look.
    """
    drawn = np.asarray(values, float)
    return of_interval(float(drawn.mean()), intervals.mean_interval(drawn, confidence=sure), seen)


def of_share(value: float, n: int, seen: float, sure: float) -> AnytimeInterval:
    """The same where only the mean of n values is known. It is as long as that of zeros and ones."""
    return of_interval(value, intervals.clopper_pearson(value * n, n, sure), seen)


def of_interval(value: float, of_source: Interval, seen: float) -> AnytimeInterval:
    """The same from an interval of the source that has the confidence of this look.

    That of all images is shorter by the correction for a finite population (Cochran, Sampling Techniques,
    1977, section 2.6).
    """
    left = math.sqrt(max(1 - seen, 0.0))
    low, high = (value + (end - value) * left for end in of_source)
    return AnytimeInterval(of_source, (low, high))


def of_copies(
    value: float, of_source: Interval, n: int, copies: int, seen: float, sure: float
) -> AnytimeInterval:
    """The same of a mean over n images of the shares of random copies that are right.

    Other copies of the same images give another value, also where all images were evaluated. The number of
    right copies is less variable than a binomial one of the same mean (Hoeffding, Ann. Math. Stat. 27, 1956).
    """
    of_all = of_interval(value, of_source, seen).of_all
    drawn = intervals.clopper_pearson(value * n * copies, n * copies, sure)
    return AnytimeInterval(of_source, _wider(value, of_all, drawn))


def of_sample(
    strata: Sequence[Sequence[int]], value: float, n: int, seen: float, sure: float
) -> AnytimeInterval:
    """The intervals of an accuracy on n images that an attack on a sample of them estimates.

    strata: of `two_phase`. value: the estimate.
    """
    parts = [two_phase.Stratum(*stratum) for stratum in strata]
    low, high = (end / n for end in two_phase.estimate(parts, sure).interval)
    both = of_share(value, n, seen, sure)
    return AnytimeInterval(*(_wider(value, ends, (low, high)) for ends in both))


def _wider(value: float, first: Interval, second: Interval) -> Interval:
    """The interval of a value with two independent errors, from the interval that each alone would leave.

    Distances are squared and added (Zou and Donner, Stat. Med. 27, 2008).
    """
    low = value - math.hypot(value - first[0], value - second[0])
    return max(low, 0.0), min(value + math.hypot(first[1] - value, second[1] - value), 1.0)


def difference(
    first: float, of_first: AnytimeInterval, second: float, of_second: AnytimeInterval
) -> AnytimeInterval:
    """The intervals of first - second, means of different images."""
    pairs = zip(of_first, of_second, strict=True)
    return AnytimeInterval(*(intervals.square_and_add(first, one, second, other) for one, other in pairs))


def of_pairs(first: np.ndarray, second: np.ndarray, seen: float, sure: float) -> AnytimeInterval:
    """The intervals of the mean of first - second, values in [0, 1] of the same images (n,) each."""
    middle = of_mean((1 + np.asarray(first, float) - np.asarray(second, float)) / 2, seen, sure)
    of_source, of_all = ((2 * low - 1, 2 * high - 1) for low, high in middle)
    return AnytimeInterval(of_source, of_all)


def half(interval: Interval) -> float:
    """Half the length of an interval."""
    return (interval[1] - interval[0]) / 2
