"""Stopping rules, two-phase sampling and certificates from counts, and how often they are wrong."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy import stats

from rbtools.probabilistic import intervals, sequential, smoothing, two_phase
from rbtools.probabilistic.two_phase import Stratum


@pytest.mark.parametrize(("samples", "rho", "above"), [(20, 0.1, False), (20, 0.1, True), (7, 0.3, False)])
def test_the_exact_stop_says_what_all_draws_would(samples: int, rho: float, above: bool) -> None:
    failures = np.random.default_rng(0).random((500, samples)) < 0.12
    rule, draws = sequential.fixed(samples, rho, above), np.arange(1, samples + 1)
    counts = np.minimum(failures.cumsum(1), len(rule.passes) - 1)
    passed, failed = draws >= rule.passes[counts], draws <= rule.fails[counts]
    first = (passed | failed).argmax(1)
    verdict, stops = passed[np.arange(500), first], first + 1
    total = failures.sum(1)
    want = 1 - total / samples > 1 - rho + 1e-9 if above else 1 - total / samples >= 1 - rho - 1e-9
    assert (verdict == want).all()
    most = sequential.allowed(samples, rho, above)
    for run, verdict_, stop in zip(failures, verdict, stops, strict=True):
        seen = run[:stop].sum()  # the decision is certain now, but not one draw earlier
        assert seen == most + 1 if not verdict_ else seen + samples - stop == most
    assert stops.mean() < samples


def test_two_hundred_and_ninety_nine_draws_without_failure_pass() -> None:
    rule = sequential.anytime(1000, 0.01, 0.95)
    assert rule.passes[0] == 299 == sequential.needed(0.01)
    assert (np.diff(rule.passes[rule.passes < sequential.NEVER]) > 0).all()
    for rho, confidence in ((0.05, 0.95), (0.1, 0.99), (0.2, 0.9)):
        least = sequential.needed(rho, confidence)
        assert least is not None and (1 - rho) ** least <= 1 - confidence < (1 - rho) ** (least - 1)
        assert sequential.anytime(2000, rho, confidence).passes[0] in (least, least + 1)


@pytest.mark.parametrize(("rho", "confidence"), [(0.05, 0.95), (0.2, 0.9)])
def test_the_sequential_test_errs_no_more_often_than_stated(rho: float, confidence: float) -> None:
    """The exact chance, at a rate of rho, of ever being passed and of ever being failed."""
    samples = 1500
    rule = sequential.anytime(samples, rho, confidence)
    for stops in ("passes", "fails"):
        alive, stopped = np.zeros(samples + 2), 0.0
        alive[0] = 1
        for draw in range(1, samples + 1):
            alive[1:] = alive[1:] * (1 - rho) + alive[:-1] * rho
            alive[0] *= 1 - rho
            failures = np.arange(samples + 1)
            at = draw >= rule.passes[failures] if stops == "passes" else draw <= rule.fails[failures]
            stopped += alive[:-1][at].sum()
            alive[:-1][at] = 0
        assert 0.2 * (1 - confidence) < stopped <= 1 - confidence


def test_strata_are_cut_by_margin_and_hold_all() -> None:
    margins = np.arange(400.0)[::-1]
    order, stratum = two_phase.order(margins, np.random.default_rng(0).random(400))
    assert sorted(order) == list(range(400))
    assert two_phase.sizes(400) == [20, 60, 320] == np.bincount(stratum).tolist()
    parts = [margins[order[stratum == number]] for number in range(3)]
    assert [(part.min(), part.max()) for part in parts] == [(0, 19), (20, 79), (80, 399)]
    assert stratum[:3].tolist() == [0, 1, 2]  # every stratum has an image in a sample of three


def test_every_survivor_of_a_stratum_is_equally_likely() -> None:
    rng = np.random.default_rng(1)
    margins, counts = rng.random(100), np.zeros(100)
    for _ in range(4000):
        order, _ = two_phase.order(margins, rng.random(100))
        counts[order[:30]] += 1
    by_margin = np.argsort(margins)
    for start, stop in ((0, 5), (5, 20), (20, 100)):
        share = counts[by_margin[start:stop]] / 4000
        mean = share.mean()
        assert np.abs(share - mean).max() < 4.5 * np.sqrt(mean * (1 - mean) / 4000) + 1e-9


def test_the_distribution_of_the_rest_is_beta_binomial() -> None:
    ours = two_phase._unsampled(Stratum(50, 20, 3), 1 / 2)
    theirs = stats.betabinom.pmf(np.arange(31), 30, 3 + 1 / 2, 17 + 1 / 2)
    assert ours == pytest.approx(theirs, rel=1e-9) and ours.sum() == pytest.approx(1)


@pytest.mark.parametrize("sampled", [1, 2])
def test_a_sample_of_fewer_images_than_strata_has_a_wide_interval(sampled: int) -> None:
    """The strata without a sampled image may have lost none or all."""
    _, stratum = two_phase.order(np.arange(100.0), np.random.default_rng(0).random(100))
    for stands in np.ndindex(*[2] * sampled):
        parts = two_phase.strata(100, stratum[:sampled], np.array(stands))
        unknown = sum(part.size for part in parts if not part.sampled)
        result = two_phase.estimate(parts)
        low, high = result.interval
        assert unknown and not result.exact and high - low >= unknown
        assert 0 <= low <= result.robust <= high <= 100
    assert result.robust == 100  # all that were attacked stand


@pytest.mark.parametrize(
    ("sizes", "sampled", "broken"),
    [
        ((50, 150, 800), (40, 55, 80), (30, 5, 0)),
        ((50, 150, 800), (40, 55, 80), (12, 3, 2)),
        ((50, 150, 800), (40, 55, 80), (0, 0, 0)),
        ((50, 150, 800), (40, 55, 80), (3, 20, 40)),
        ((150, 450, 2400), (5, 9, 16), (5, 0, 0)),
        ((150, 450, 2400), (5, 9, 16), (0, 0, 0)),
        ((400, 1200, 6400), (25, 45, 80), (5, 0, 0)),
        ((400, 1200, 6400), (25, 45, 80), (60, 10, 2)),
    ],
)
@pytest.mark.slow
def test_the_estimate_is_unbiased_and_its_interval_covers(
    sizes: tuple[int, int, int], sampled: tuple[int, int, int], broken: tuple[int, int, int]
) -> None:
    """Simple random samples of strata of known truth: estimates, their mean, and their intervals."""
    rng = np.random.default_rng(2)
    truth = sum(sizes) - sum(broken)
    estimates, covered = [], 0
    for _ in range(300):
        parts = zip(broken, sizes, sampled, strict=True)
        strata = [
            Stratum(size, some, rng.hypergeometric(lost, size - lost, some)) for lost, size, some in parts
        ]
        estimate = two_phase.estimate(strata)
        estimates.append(estimate.robust)
        covered += estimate.interval[0] <= truth <= estimate.interval[1]
        assert estimate.interval[0] <= estimate.robust <= estimate.interval[1]
    error = np.std(estimates) / np.sqrt(300)
    assert abs(np.mean(estimates) - truth) <= 4 * error
    assert covered >= 280


def test_the_interval_of_the_population_has_both_errors() -> None:
    low, high = two_phase.population_interval(400, (400, 400), 1000)
    assert (low, high) == pytest.approx(intervals.wilson(400, 1000))
    wider = two_phase.population_interval(400, (390, 405), 1000)
    assert wider[0] < low and wider[1] > high
    assert wider[0] == pytest.approx(0.4 - np.hypot(0.4 - low, 0.01))
    assert two_phase.population_interval(0, (0, 0), 10)[0] == 0


def test_looks_grow_to_all_and_share_the_error() -> None:
    assert two_phase.looks(300) == [48, 72, 108, 162, 243, 300]
    assert two_phase.looks(20) == [20]
    assert two_phase.confidence_of_look(300) == pytest.approx(1 - 0.05 / 5)
    assert two_phase.confidence_of_look(20) == pytest.approx(0.95)


RADII = (0.0, 0.25, 0.5, 0.75)


@pytest.mark.parametrize(("hits", "draws"), [(100, 100), (99, 100), (61, 100), (1, 20), (500, 600)])
def test_the_bound_is_the_one_of_clopper_and_pearson(hits: int, draws: int) -> None:
    (bound,) = smoothing.lower_bound(np.array([hits]), np.array([draws]), 0.001)
    assert stats.binom.sf(hits - 1, draws, bound) == pytest.approx(0.001, rel=1e-6)


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
    assert words is not None and "0.9529" in words and "radius 1 needs" in words and "218105 draws" in words
    just, short = (smoothing.largest_radius(draws, 0.25, 0.001) for draws in (218105, 218104))
    assert just >= 1 > short
    assert "up to 0. The" in str(smoothing.too_few((0.5,), 5, 0.25, 0.001))  # not even 1/2 is shown


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
    at = dict(zip(plan.checks.tolist(), plan.certify[place].tolist(), strict=True))
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
        steps = np.diff(plan.checks, prepend=0)
        failures = generator.binomial(steps, true, size=(runs, len(steps))).cumsum(1)
        crossed = (failures[:, None, :] <= plan.certify[None]).any(2)
        certified = crossed.cumprod(1).astype(bool)
        wrong = certified[:, rates <= true + 1e-15].any(1).mean()
        assert wrong <= alpha + 4 * math.sqrt(alpha * (1 - alpha) / runs), true


def test_a_radius_out_of_reach_is_given_up_without_draws() -> None:
    plan = smoothing.stopping_plan(1000, (0.0, 1.0), 0.25, 0.001)
    assert (plan.certify[1] == -1).all() and (plan.give_up[1] == 0).all()
    few = smoothing.stopping_plan(100, (0.0, 0.25), 0.25, 0.001)
    assert few.checks.tolist() == [100] and few.certify[0, 0] == stats.binom.ppf(0.001, 100, 0.5) - 1
