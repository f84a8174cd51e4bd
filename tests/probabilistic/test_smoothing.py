"""Certificates from counts: exact bounds, and a stopping plan whose error is computed and simulated."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from rbtools.probabilistic import smoothing

RADII = (0.0, 0.25, 0.5, 0.75)


def binomial_tail(hits: int, draws: int, p: float) -> float:
    """P(at least `hits` of `draws`), by its sum."""
    return math.fsum(math.comb(draws, k) * p**k * (1 - p) ** (draws - k) for k in range(hits, draws + 1))


@pytest.mark.parametrize(("hits", "draws"), [(100, 100), (99, 100), (61, 100), (1, 20), (500, 600)])
def test_the_bound_is_the_one_of_clopper_and_pearson(hits: int, draws: int) -> None:
    (bound,) = smoothing.lower_bound(np.array([hits]), np.array([draws]), 0.001)
    assert binomial_tail(hits, draws, float(bound)) == pytest.approx(0.001, rel=1e-6)


def test_radii_are_those_of_the_paper() -> None:
    # All of n draws: the bound is alpha^(1/n). 100,000 draws reach sigma * 3.8115 (Cohen et al., figure 2).
    hits, draws = np.array([100_000, 50_000, 50_600, 0]), np.full(4, 100_000)
    full, half, above, none = smoothing.certified_radii(hits, draws, 0.5, 0.001)
    assert full == pytest.approx(0.5 * NormalDist().inv_cdf(0.001 ** (1 / 100_000)), rel=1e-9)
    assert full == pytest.approx(0.5 * 3.8115, abs=1e-4)
    assert math.isnan(half) and math.isnan(none)
    share = float(smoothing.lower_bound(np.array([50_600]), np.array([100_000]), 0.001)[0])
    assert 0.5 < share < 0.506 and above == pytest.approx(0.5 * NormalDist().inv_cdf(share), rel=1e-6)
    assert smoothing.largest_radius(100_000, 0.5, 0.001) == pytest.approx(full, rel=1e-9)


def test_draws_that_cannot_certify_are_named() -> None:
    assert smoothing.too_few((0.0, 0.5, 0.95), 100_000, 0.25, 0.001) is None
    words = smoothing.too_few((0.5, 1.0), 100_000, 0.25, 0.001)
    assert words is not None and "0.9529" in words and "radius 1." in words and "218105 draws" in words
    just, short = (smoothing.largest_radius(draws, 0.25, 0.001) for draws in (218105, 218104))
    assert just >= 1 > short
    assert "up to 0," in str(smoothing.too_few((0.5,), 5, 0.25, 0.001))  # not even 1/2 is shown


@pytest.mark.parametrize("alpha", [0.001, 0.05])
@pytest.mark.parametrize("place", range(len(RADII)))
def test_the_chance_of_a_wrong_certificate_is_exactly_below_alpha(place: int, alpha: float) -> None:
    """Every single draw is followed, not only the looks: the failures' distribution at the limiting rate."""
    draws = 6000
    plan = smoothing.stopping_plan(draws, RADII, 0.25, alpha)
    rate = smoothing.failure_rate(RADII[place], 0.25)
    most = int(plan.certify[place].max())
    open_share, wrong = np.zeros(most + 2), 0.0  # the last place: more failures than ever certify
    open_share[0] = 1.0
    at = dict(zip(plan.looks.tolist(), plan.certify[place].tolist(), strict=True))
    for draw in range(1, draws + 1):
        moved = open_share[:-1] * rate
        open_share[:-1] -= moved
        open_share[1:] += moved
        bound = at.get(draw, -1)
        wrong += open_share[: bound + 1].sum()
        open_share[: bound + 1] = 0
    assert wrong <= alpha * (1 + 1e-6)
    if most >= 0 and rate < 0.4:
        assert wrong > 0.35 * alpha  # the first look that can certify has 40 % of it


def test_the_error_of_a_whole_list_is_below_alpha_wherever_the_truth_lies() -> None:
    """Bernoulli streams: any radius certified beyond the true one is an error of the image."""
    alpha, runs, draws = 0.05, 4000, 3000
    plan = smoothing.stopping_plan(draws, RADII, 0.25, alpha)
    rates = np.array([smoothing.failure_rate(radius, 0.25) for radius in RADII])
    generator = np.random.default_rng(1)
    for true in (*rates, 0.3, 0.1, 0.01):
        steps = np.diff(plan.looks, prepend=0)
        failures = generator.binomial(steps, true, size=(runs, len(steps))).cumsum(1)
        crossed = (failures[:, None, :] <= plan.certify[None]).any(2)
        certified = crossed.cumprod(1).astype(bool)
        wrong = certified[:, rates <= true + 1e-15].any(1).mean()
        assert wrong <= alpha + 4 * math.sqrt(alpha * (1 - alpha) / runs), true
