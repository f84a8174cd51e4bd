"""Two-phase sampling: the order of the sample, the estimator and its intervals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rbtools.probabilistic import intervals, two_phase
from rbtools.probabilistic.two_phase import Stratum


def test_strata_are_cut_by_margin_and_hold_all() -> None:
    margins = np.arange(400.0)[::-1]
    order, stratum = two_phase.order(margins, np.random.default_rng(0).random(400))
    assert sorted(order) == list(range(400))
    assert two_phase.sizes(400) == [20, 60, 320] == np.bincount(stratum).tolist()
    edges = [
        (margins[order[stratum == number]].min(), margins[order[stratum == number]].max())
        for number in range(3)
    ]
    assert edges == [(0, 19), (20, 79), (80, 399)]
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


def test_no_sampled_image_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="no survivor was sampled"):
        two_phase.estimate([Stratum(10, 0, 0), Stratum(20, 0, 0)])
    assert two_phase.estimate([Stratum(0, 0, 0)]) == (0, (0, 0), True)


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
        counts = [
            int(rng.hypergeometric(lost, size - lost, some))
            for lost, size, some in zip(broken, sizes, sampled, strict=True)
        ]
        estimate = two_phase.estimate([Stratum(*part) for part in zip(sizes, sampled, counts, strict=True)])
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
