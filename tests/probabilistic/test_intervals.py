"""Intervals against published examples, scipy, and simulated coverage."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rbtools.probabilistic import intervals as module
from rbtools.probabilistic.intervals import (
    clopper_pearson,
    mean_interval,
    of_images,
    skewed_interval,
    square_and_add,
    student_quantile,
    wilson,
)

CONFIDENCES = (0.9, 0.95, 0.99)


@st.composite
def proportions(draw: st.DrawFn) -> tuple[int, int]:
    trials = draw(st.integers(1, 20_000))
    return draw(st.integers(0, trials)), trials


@given(proportions(), st.sampled_from(CONFIDENCES))
def test_wilson_and_clopper_pearson_are_scipy_s(counts: tuple[int, int], confidence: float) -> None:
    for interval, method in ((wilson, "wilsoncc"), (clopper_pearson, "exact")):
        want = stats.binomtest(*counts).proportion_ci(confidence, method=method)
        assert interval(*counts, confidence) == pytest.approx((want.low, want.high), abs=1e-9)


def test_wilson_by_hand() -> None:
    # 81 of 263: an example of Newcombe (Stat. Med. 17, 1998), table I, method 4
    assert wilson(81, 263) == pytest.approx((0.2535, 0.3682), abs=1e-4)
    assert wilson(15, 148) == pytest.approx((0.0598, 0.1644), abs=1e-4)
    assert wilson(0, 20) == (0.0, pytest.approx(0.2005, abs=1e-4))
    assert wilson(1, 29) == pytest.approx((0.0018, 0.1963), abs=1e-4)


@pytest.mark.parametrize(
    ("counts", "want"),
    [  # Newcombe, Statistics in Medicine 17 (1998), table II, method 10
        ((56, 70, 48, 80), (0.0524, 0.3339)),
        ((9, 10, 3, 10), (0.1705, 0.8090)),
        ((6, 7, 2, 7), (0.0582, 0.8062)),
        ((5, 56, 0, 29), (-0.0381, 0.1926)),
        ((0, 10, 0, 20), (-0.1611, 0.2775)),
        ((0, 10, 0, 10), (-0.2775, 0.2775)),
        ((10, 10, 0, 20), (0.6791, 1.0000)),
        ((10, 10, 0, 10), (0.6075, 1.0000)),
    ],
)
def test_newcombe_s_own_examples(counts: tuple[int, int, int, int], want: tuple[float, float]) -> None:
    """Of k1/n1 - k2/n2: his method 10 squares and adds two plain intervals of Wilson."""
    pairs = counts[:2], counts[2:]
    one, other = ((k / n, stats.binomtest(k, n).proportion_ci(0.95, method="wilson")) for k, n in pairs)
    assert square_and_add(*one, *other) == pytest.approx(want, abs=6e-5)


@given(proportions(), st.sampled_from(CONFIDENCES))
def test_mean_interval_of_zeros_and_ones_is_the_exact_one(counts: tuple[int, int], confidence: float) -> None:
    successes, trials = counts
    found = mean_interval([1.0, 0.0], [successes, trials - successes], confidence)
    assert found == pytest.approx(clopper_pearson(successes, trials, confidence), abs=2e-8)


def test_mean_interval_by_hand() -> None:
    """Below all values, the mean of N values and a 0 under uniform weights has the law bound^N / product."""
    assert mean_interval([0.8]) == pytest.approx((0.025 * 0.8, 1 - 0.025 * 0.2))
    assert mean_interval([0.5, 0.6])[0] == pytest.approx(math.sqrt(0.025 * 0.5 * 0.6))
    low, high = mean_interval([0.9] * 40)
    assert (low, high) == pytest.approx((0.9 * 0.025 ** (1 / 40), 1 - 0.1 * 0.025 ** (1 / 40)))
    assert mean_interval([1e-8] * 10)[0] == pytest.approx(1e-8 * 0.025 ** (1 / 10), rel=1e-8)


def test_mean_interval_is_the_quantile_of_dirichlet_means() -> None:
    rng = np.random.default_rng(0)
    for count in (3, 30, 200):
        values = rng.beta(0.5, 2, count)
        weights = rng.dirichlet(np.ones(count + 1), 40_000)
        means = weights[:, :count] @ values
        want = np.quantile(means, 0.025), np.quantile(means + weights[:, count], 0.975)
        assert mean_interval(values) == pytest.approx(want, abs=0.02 * (want[1] - want[0]))


def test_mean_interval_sees_values_and_not_their_order() -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 6, 200) / 5
    often = np.bincount((values * 5).round().astype(int), minlength=6)
    once = pytest.approx(mean_interval(values), abs=1e-12)
    assert mean_interval(np.sort(values)) == once and mean_interval(np.arange(6) / 5, often) == once


def test_many_different_values_are_rounded_without_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for values in (rng.beta(3, 1, 1000), np.minimum(rng.lognormal(-9, 3, 1000), 1)):
        found = mean_interval(values)
        monkeypatch.setattr(module, "_GROUPS", 10_000)
        whole = mean_interval(values)
        monkeypatch.undo()
        assert found == pytest.approx(whole, abs=0.001 * (whole[1] - whole[0]))


@pytest.mark.parametrize("count", [2, 4, 7])
def test_no_distribution_of_three_values_is_missed_more_often_than_stated(count: int) -> None:
    """The exact chance, over all samples, that a bound is beyond the mean: a search for the worst of them."""
    rng = np.random.default_rng(count)
    samples = np.array([(i, j, count - i - j) for i in range(count + 1) for j in range(count + 1 - i)])
    ways = stats.multinomial.logpmf(samples, count, np.full(3, 1 / 3)) + count * math.log(3)
    for _ in range(4):
        values = np.sort(rng.random(3)) ** rng.choice([0.3, 1, 3])
        values[rng.integers(0, 3) :: 2] = 1.0
        ends = np.array([mean_interval(values, row) for row in samples])
        shares = rng.dirichlet(np.full(3, 0.5), 2000).clip(1e-300)
        chances = np.exp(ways + np.log(shares) @ samples.T)
        means = (shares @ values)[:, None]
        assert (chances * (ends[:, 0] > means + 1e-9)).sum(1).max() <= 0.025 + 1e-6
        assert (chances * (ends[:, 1] < means - 1e-9)).sum(1).max() <= 0.025 + 1e-6


def test_the_interval_of_a_mean_without_skewness_is_student_s() -> None:
    want = stats.t.interval(0.99, 39, loc=2.5, scale=0.1 / math.sqrt(40))
    assert skewed_interval(2.5, 0.1, 0.0, 40, 0.99) == pytest.approx(want)
    assert skewed_interval(2.5, 0.1, 1e-5, 40, 0.99) == pytest.approx(want, rel=1e-5)
    low, high = skewed_interval(-1.0, 2.0, 3.0, 50)
    assert skewed_interval(1.0, 2.0, -3.0, 50) == pytest.approx((-high, -low))


def test_a_skewed_interval_by_hand() -> None:
    # skewness 2, n 100: t of 99 degrees is 1.98422, and 2 / (6 n) is 1 / 300
    low, high = skewed_interval(0.0, 1.0, 2.0, 100)
    assert low == pytest.approx(-1.5 * ((1 + 2 * (0.198422 - 1 / 300)) ** (1 / 3) - 1), abs=1e-6)
    assert high == pytest.approx(1.5 * (1 - (1 + 2 * (-0.198422 - 1 / 300)) ** (1 / 3)), abs=1e-6)


def test_student_quantile() -> None:
    for confidence, freedom in ((0.95, 1), (0.9, 7), (0.99, 100)):
        want = stats.t.ppf((1 + confidence) / 2, freedom)
        assert student_quantile(confidence, freedom) == pytest.approx(want, rel=1e-9)


def test_impossible_counts_and_confidences_are_refused() -> None:
    for interval in (wilson, clopper_pearson):
        for counts, confidence in (((6, 5), 0.95), ((3, 5), 95)):
            with pytest.raises(ValueError, match=r"is not a proportion|not between 0 and 1"):
                interval(*counts, confidence)


RNG = np.random.default_rng(0)
LAWS: dict[str, tuple[Callable[[tuple[int, int]], np.ndarray], float]] = {
    "normal": (lambda size: RNG.normal(2, 1, size), 2.0),
    "exponential": (lambda size: RNG.exponential(1, size), 1.0),
    "log-normal": (lambda size: RNG.lognormal(0, 1, size), math.exp(0.5)),
    "log-normal downwards": (lambda size: -RNG.lognormal(0, 1, size), -math.exp(0.5)),
    "Pareto": (lambda size: RNG.pareto(2.5, size) + 1, 2.5 / 1.5),
    "one in twenty": (
        lambda size: np.where(RNG.random(size) < 0.05, RNG.exponential(5, size), RNG.exponential(0.05, size)),
        0.05 * 5 + 0.95 * 0.05,
    ),
}


@pytest.mark.parametrize("law", LAWS)
def test_means_of_a_hundred_are_covered(law: str) -> None:
    draw, mean = LAWS[law]
    ends = [of_images(row) for row in draw((1000, 100))]
    assert np.mean([low <= mean <= high for low, high in ends]) > 0.94


def test_the_ends_by_hand() -> None:
    values = [0.0, 0.0, 1.0, 3.0]
    skewness = float(np.mean((np.array(values) - 1) ** 3)) / 1.5**1.5
    ends = [skewed_interval(1.0, math.sqrt(2), known, 4) for known in (0.0, skewness)]
    low, high = of_images(values)
    assert low == pytest.approx(min(ends)[0] - 0.75)
    assert high == pytest.approx(max(one[1] for one in ends) + 1.5)
    assert of_images(values, 0.0) == (0.0, high)
    assert of_images([0.5, 0.5, 0.5]) == (0.5, 0.5)
