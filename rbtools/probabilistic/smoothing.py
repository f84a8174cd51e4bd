"""Certificates of randomised smoothing, computed from counts of noisy copies.

The smoothed classifier g returns the class that the network returns most often for x + N(0, sigma^2 I). If
this class has the probability pA > 1/2, g returns it everywhere within the L2 distance sigma * Phi^-1(pA) of
x (Cohen, Rosenfeld and Kolter, "Certified Adversarial Robustness via Randomized Smoothing", ICML 2019,
theorem 1). `certified_radii` is the procedure CERTIFY of this paper (section 3.2.2), with a fixed number of
samples and an exact lower bound of pA. `stopping_plan` decides a list of radii with few samples.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from rbtools.lazy import np, special

BLOCK = 128
"""The number of copies of an image that are sampled together. Checks are made at multiples of this number."""

_GROWTH = 1.1  # factor between two checks; 1.25 needs 4 % more samples
# Shares of the error for the first check that can certify, which decides most images because they have no
# failure, and for the last check, which decides images near a limit. The other checks share the remainder.
_FIRST, _LAST = 0.4, 0.3
# A radius is given up if the image would pass at the end with less than this probability. Giving up loses
# some certificates, but makes none of them wrong; .01 needs 4 % more samples.
_HOPE = 0.015


def lower_bound(hits: np.ndarray, draws: np.ndarray, alpha: float) -> np.ndarray:
    """Return the exact lower confidence bound (N,) of a probability (Clopper and Pearson, Biometrika 26,
    1934). `hits` and `draws` are numbers of copies (N,), and alpha is the one-sided error probability."""
    hits, draws = np.asarray(hits, float), np.asarray(draws, float)
    bound: np.ndarray = np.where(
        hits > 0, special.betaincinv(np.maximum(hits, 1), draws - hits + 1, alpha), 0.0
    )
    return bound


def certified_radii(hits: np.ndarray, draws: np.ndarray, sigma: float, alpha: float) -> np.ndarray:
    """Return the certified L2 radius (N,) of each image, in the unit of sigma, or NaN if CERTIFY abstains.
    `hits` (N,) is the number of the `draws` copies that the network classifies as the selected class. Each
    radius is too large with a probability of at most alpha."""
    share = lower_bound(hits, draws, alpha)
    radii: np.ndarray = np.where(share > 0.5, sigma * special.ndtri(share), np.nan)
    return radii


def failure_rate(radius: float, sigma: float) -> float:
    """Return the failure rate 1 - Phi(radius / sigma), below which the radius is certified."""
    return float(special.ndtr(-radius / sigma))


def largest_radius(draws: int, sigma: float, alpha: float) -> float:
    """Return the largest radius that is certified if all `draws` noisy copies get the same class; 0 if there
    is none."""
    share = alpha ** (1 / draws)
    return sigma * float(special.ndtri(share)) if share > 0.5 else 0.0


def too_few(radii: tuple[float, ...], draws: int, sigma: float, alpha: float) -> str | None:
    """Return why `draws` samples cannot certify every radius, or None if all radii can be certified."""
    most = largest_radius(draws, sigma, alpha)
    beyond = [radius for radius in radii if radius > most]
    if not beyond:
        return None
    need = math.ceil(math.log(alpha) / math.log1p(-failure_rate(min(beyond), sigma)))
    return (
        f"{draws} draws with sigma {sigma:g} can only certify radii up to {most:.4g}. The radius"
        f" {min(beyond):g} needs {need} draws or a larger sigma."
    )


class StoppingPlan(NamedTuple):
    """A table for deciding images from the number of failures at certain numbers of samples.

    `checks`, int64 (L,), are the numbers of samples at which an image is checked, and the last check is after
    all samples. `certify` and `give_up`, (R, L), have a row for each radius and a column for each check:
    `certify` is the largest number of failures that still certifies the radius (-1 if none does), and
    `give_up` is the smallest number at which the radius is given up.
    """

    checks: np.ndarray
    certify: np.ndarray
    give_up: np.ndarray


@functools.lru_cache(maxsize=32)
def stopping_plan(draws: int, radii: tuple[float, ...], sigma: float, alpha: float) -> StoppingPlan:
    """Return the plan for deciding, with at most `draws` samples, which of the increasing `radii` are
    certified.

    A radius is certified if the failure rate p is shown to be below rho = 1 - Phi(radius / sigma). If p >=
    rho, the radius is certified at any check with a probability of at most alpha. The boundaries distribute
    alpha over the checks (Lan and DeMets, Biometrika 70, 1983). The boundaries are computed at p = rho from
    the exact distribution of the failures of images that are still undecided. An image has a radius only if
    it also has all smaller radii. If any radius of an image is wrong, the smallest radius with p >= rho is
    also wrong. The probability of a wrong radius is therefore at most alpha for all radii of an image
    together (a fixed sequence of tests: Maurer, Hothorn and Lehmacher, 1995).
    """
    rates = [failure_rate(radius, sigma) for radius in radii]
    starts = [_first_check(rate, draws, alpha) for rate in rates]
    numbers, blocks = {draws, *starts}, 1  # a growing sequence, and the first check of each radius
    while blocks * BLOCK < draws:
        numbers.add(blocks * BLOCK)
        blocks = max(blocks + 1, round(blocks * _GROWTH))
    checks = np.array(sorted(numbers))
    certify = np.array([_boundary(checks, rate, alpha, at) for rate, at in zip(rates, starts, strict=True)])
    give_up = np.array([_hopeless(checks, int(bounds[-1])) for bounds in certify])
    return StoppingPlan(checks, certify, give_up)


def _first_check(rate: float, draws: int, alpha: float) -> int:
    """The number of samples at the first check that can certify an image without failures."""
    need = math.log(_FIRST * alpha) / math.log1p(-rate) if rate > 0 else math.inf
    return draws if need > draws else min(math.ceil(math.ceil(need) / BLOCK) * BLOCK, draws)


def _boundary(checks: np.ndarray, rate: float, alpha: float, start: int) -> np.ndarray:
    """The largest number of failures (L,) that certifies the radius at each check, or -1 if none does."""
    boundary = np.full(len(checks), -1)
    # probabilities of undecided runs with low, low + 1 ... failures, at p = rate
    open_share, low = np.ones(1), 0
    spent, before = 0.0, 0
    for check, draws in enumerate(checks.tolist()):
        first, chances = _binomial(draws - before, rate)
        open_share, low, before = np.convolve(open_share, chances), low + first, draws
        if draws < start:
            continue
        progress = 1.0 if draws == checks[-1] else math.log(draws / start) / math.log(checks[-1] / start)
        share = _FIRST + (1 - _FIRST - _LAST) * progress + (_LAST if draws == checks[-1] else 0)
        left = alpha * share - spent
        cumulated = np.cumsum(open_share)
        count = int((cumulated <= left).sum())
        if count:
            spent += float(cumulated[count - 1])
            open_share, low = open_share[count:], low + count
            boundary[check] = low - 1
    return boundary


def _binomial(draws: int, rate: float) -> tuple[int, np.ndarray]:
    """The first number of failures and the probabilities from it on, except a total of less than 1e-18."""
    reach = 9 * math.sqrt(draws * rate * (1 - rate)) + 20
    low, high = max(0, math.floor(draws * rate - reach)), min(draws, math.ceil(draws * rate + reach))
    count = np.arange(low, high + 1, dtype=float)
    choices = -special.betaln(count + 1, draws - count + 1) - math.log(draws + 1)
    chances: np.ndarray = np.exp(choices + special.xlogy(count, rate) + special.xlog1py(draws - count, -rate))
    return low, chances


def _hopeless(checks: np.ndarray, most: int) -> np.ndarray:
    """The smallest number of failures (L,) at each check for which a radius is given up: the failure rate is
    at most most / draws with a probability below _HOPE, under Jeffreys' prior."""
    if most < 0:
        return np.zeros(len(checks), np.int64)
    rate = (most + 0.5) / float(checks[-1])
    low: np.ndarray = np.zeros(len(checks), np.int64)
    high: np.ndarray = np.minimum(most + 1, checks + 1)
    while (low < high).any():
        middle = (low + high) // 2
        hopeless = special.betainc(middle + 0.5, np.maximum(checks - middle, 0) + 0.5, rate) < _HOPE
        low, high = np.where(hopeless, low, np.minimum(middle + 1, high)), np.where(hopeless, middle, high)
    return high
