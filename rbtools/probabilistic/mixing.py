"""Inference on the distribution of the true failure rates of images, from counts of noisy copies.

An image with failure rate p has K ~ Bin(M, p) failures among M samples, and the rates of the images have an
unknown distribution G. ProbAcc(rho) is G([0, rho]). The fraction of images with K <= rho * M instead
estimates a probability of the binomial mixture over G, and is therefore biased for any number of images.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from rbtools.lazy import np, special
from rbtools.probabilistic.intervals import Interval, clopper_pearson
from rbtools.probabilistic.sequential import COUNT_SLACK

_EM_STEPS = 200
_NORMALS = 4000


class Event(NamedTuple):
    """The number of images with at most `most` failures in `draws` samples."""

    images: int
    draws: int
    most: int


def events(failures: Sequence[int], samples: int, rho: float) -> list[Event]:
    """Return the number of images with at most k failures, for thresholds k up to 3 deviations from rho."""
    deviation = math.sqrt(samples * rho * (1 - rho))
    around = (math.floor(rho * samples + step * deviation / 2 + COUNT_SLACK) for step in range(-6, 7))
    thresholds = sorted({min(max(threshold, 0), samples - 1) for threshold in around})
    return [Event(sum(k <= most for k in failures), samples, most) for most in thresholds]


def share_interval(seen: Sequence[Event], images: int, rho: float, confidence: float = 0.95) -> Interval:
    """Return the interval of G([0, rho]) from nested events of independent images, without assumptions on G.

    The ends are the smallest and the largest value of G([0, rho]) over all G whose event probabilities are in
    their intervals. The method is F-localization (Ignatiadis and Wager, "Confidence intervals for
    nonparametric empirical Bayes analysis", JASA 117, 2022, section 2), with the exact intervals of the
    events at a simultaneous level, which are also valid for few images. If many images have rates near rho,
    only more samples per image can make the interval narrower.
    """
    from scipy.optimize import linprog

    rates, passing = _rates(seen, rho)
    columns = np.stack([special.bdtr(event.most, event.draws, rates) for event in seen])
    quantile = _together([event.images for event in seen], images, confidence)
    while True:  # improbable counts may exclude every G: widen the intervals until some G is feasible
        level = math.erf(quantile / math.sqrt(2))
        ends = np.array([clopper_pearson(event.images, images, level) for event in seen])
        bounds = np.concatenate([ends[:, 1], -ends[:, 0]])
        programs = [
            linprog(
                sign * passing,
                A_ub=np.concatenate([columns, -columns]),
                b_ub=bounds,
                A_eq=np.ones((1, len(rates))),
                b_eq=[1.0],
            )
            for sign in (1, -1)
        ]
        if all(program.success for program in programs):
            low, high = (round(abs(float(program.fun)), 12) for program in programs)  # 1 less 1e-16 is 1
            return low, min(high, 1.0)
        quantile *= 1.2


def _rates(seen: Sequence[Event], rho: float) -> tuple[np.ndarray, np.ndarray]:
    """The grid of rates for G, and for each rate 1 (passes) or 0 (fails). The grid contains rho twice, as
    passing and as failing.

    On the scale of angles, every proportion among M samples has the standard deviation 1 / (2 sqrt(M)).
    Within 12 standard deviations of rho, the steps of the grid are a 16th of a standard deviation, which is
    needed for the narrow intervals of 10,000 images; beyond, the events are practically certain or
    impossible.
    """
    deviation = 0.5 / math.sqrt(max(event.draws for event in seen))
    angles = math.asin(math.sqrt(rho)) + deviation * np.arange(-12, 12.01, 1 / 16)
    near = np.sin(angles[(angles > 0) & (angles < math.pi / 2)]) ** 2
    rates = np.unique(np.concatenate([near, np.linspace(0, 1, 21), [rho]]))
    return np.append(rates, rho), np.append((rates <= rho).astype(float), 0.0)


def _together(counts: Sequence[int], images: int, confidence: float) -> float:
    """The number of deviations for which the intervals of all nested events are valid simultaneously: a
    quantile of the maximum of a standardised Brownian bridge at the events' probabilities."""
    probability = np.unique((np.array(counts) + 0.5) / (images + 1))
    widths = np.diff(np.concatenate([[0.0], probability, [1.0]]))
    steps = _normals()[:, : len(widths)] * np.sqrt(widths)
    bridge = steps.cumsum(1)[:, :-1] - probability * steps.sum(1, keepdims=True)
    most = np.abs(bridge / np.sqrt(probability * (1 - probability))).max(1)
    return float(np.quantile(most, confidence))


@functools.lru_cache(maxsize=1)
def _normals() -> np.ndarray:
    return np.random.Generator(np.random.Philox(key=1)).standard_normal((_NORMALS, 64))


def share_estimate(failures: Sequence[int], samples: int, rhos: Sequence[float]) -> list[float]:
    """Estimates G([0, rho]) for each rho from the failures of `samples` samples; 0 if there are no images.

    The method is expectation maximisation on a grid of rates, from a uniform G. The iteration stops before it
    reaches the maximum likelihood, so that G remains smooth.
    """
    if not len(failures):
        return [0.0] * len(rhos)
    values, counts = np.unique(np.asarray(failures), return_counts=True)
    points = int(min(max(100, 6 * math.sqrt(samples)), 600))
    angles = np.linspace(0, math.pi / 2, points)  # on this scale K / M has the same deviation everywhere
    rates = np.sin(angles) ** 2
    failure_counts = values[:, None].astype(float)
    chosen = (
        special.gammaln(samples + 1)
        - special.gammaln(failure_counts + 1)
        - special.gammaln(samples - failure_counts + 1)
    )
    likely = np.exp(
        chosen + special.xlogy(failure_counts, rates) + special.xlog1py(samples - failure_counts, -rates)
    )
    weights = np.full(points, 1 / points)
    for _ in range(_EM_STEPS):
        weights = weights * (likely.T @ (counts / (likely @ weights))) / counts.sum()
    upper = (angles[:-1] + angles[1:]) / 2  # a grid point represents the angles nearest to it
    below = np.concatenate([[0.0], np.cumsum(weights)])
    ends = np.concatenate([[0.0], upper, [math.pi / 2]])
    return [float(np.interp(math.asin(math.sqrt(rho)), ends, below)) for rho in rhos]
