"""Intervals of planned looks: their coverage is computed, not simulated, where that is possible."""

from __future__ import annotations

import numpy as np
import pytest

from rbtools.probabilistic import intervals, looks, two_phase


def binomial(n: int, p: float) -> np.ndarray:
    """The probabilities (n + 1,) of the counts of n trials."""
    row = np.ones(1)
    for _ in range(n):
        row = np.convolve(row, [1 - p, p])
    return row


def ever_excluded(p: float, n: int, together: float) -> float:
    """The probability that the interval of any look excludes p: a walk over the counts of all looks."""
    planned = looks.sizes(8, n)
    sure = looks.confidence(len(planned), together)
    alive, before = np.ones(1), 0
    for size in planned:
        alive = np.convolve(alive, binomial(size - before, p))
        before = size
        for count in range(size + 1):
            low, high = looks.of_share(count / size, size, size / n, sure).of_source
            if not low <= p <= high:
                alive[count] = 0
    return 1 - float(alive.sum())


def test_planned_looks_double_up_to_all_images() -> None:
    assert looks.sizes(16, 100) == [16, 32, 64, 100]
    assert looks.sizes(16, 16) == [16]
    assert looks.confidence(5) == pytest.approx(0.99)


@pytest.mark.parametrize("p", [0.02, 0.3, 0.5, 0.9])
def test_the_chance_that_any_look_is_wrong_is_below_the_error(p: float) -> None:
    assert 0 < ever_excluded(p, 64, 0.8) <= 0.2
    assert ever_excluded(p, 64, 0.95) <= 0.05


def test_one_look_at_each_confidence_is_wrong_too_often() -> None:
    planned = looks.sizes(8, 64)
    alone = 1 - (1 - 0.2) * len(planned)  # the confidence of all looks of which each has 80 %
    assert ever_excluded(0.5, 64, alone) > 0.2


def test_shares_and_means_of_zeros_and_ones_have_the_same_interval() -> None:
    values = np.array([1.0] * 13 + [0.0] * 7)
    of_mean, of_share = looks.of_mean(values, 0.25, 0.99), looks.of_share(0.65, 20, 0.25, 0.99)
    assert np.allclose(of_mean, of_share, atol=1e-6)
    assert of_share.of_source == intervals.clopper_pearson(13, 20, 0.99)
    ends = [0.65 + (end - 0.65) * 0.75**0.5 for end in of_share.of_source]
    assert np.allclose(of_share.of_all, ends)


def test_nothing_is_left_to_know_when_all_images_were_seen() -> None:
    assert looks.of_share(0.65, 20, 1.0, 0.99).of_all == (0.65, 0.65)
    whole = looks.of_sample([[2, 2, 1], [3, 3, 0], [15, 15, 0]], 0.76, 25, 1.0, 0.99)
    assert whole.of_all == (0.76, 0.76)


def test_a_sample_adds_its_own_uncertainty() -> None:
    strata = [[5, 4, 1], [15, 4, 0], [80, 4, 0]]
    low, high = (
        end / 200 for end in two_phase.estimate([two_phase.Stratum(*s) for s in strata], 0.99).interval
    )
    of_all = looks.of_sample(strata, 0.49, 200, 1.0, 0.99).of_all
    assert of_all == pytest.approx((low, high))
    of_source = looks.of_sample(strata, 0.49, 200, 1.0, 0.99).of_source
    alone = looks.of_share(0.49, 200, 1.0, 0.99).of_source
    assert of_source[0] < alone[0] and of_source[1] > alone[1]


def test_pairs_have_shorter_intervals_than_two_models_alone() -> None:
    rng = np.random.default_rng(0)
    first = rng.random(200) < 0.7
    second = np.where(rng.random(200) < 0.05, ~first, first)
    paired = looks.of_pairs(first, second, 0.5, 0.99)
    alone = looks.difference(
        float(first.mean()),
        looks.of_mean(first, 0.5, 0.99),
        float(second.mean()),
        looks.of_mean(second, 0.5, 0.99),
    )
    assert looks.half(paired.of_source) < 0.5 * looks.half(alone.of_source)
    assert paired.of_source[0] < float((first * 1.0 - second).mean()) < paired.of_source[1]
