"""Intervals against published examples, scipy, and simulated coverage."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rbtools.attacks import ATTACKS
from rbtools.evaluation.robust_loss import LossOutput
from rbtools.probabilistic import intervals as module
from rbtools.probabilistic.intervals import (
    clopper_pearson,
    mean_interval,
    normal_quantile,
    skewed_interval,
    square_and_add,
    student_quantile,
    wilson,
)

CONFIDENCES = (0.9, 0.95, 0.99)


def newcombe(k1: int, n1: int, k2: int, n2: int) -> tuple[float, float]:
    """Of k1/n1 - k2/n2: Newcombe's method 10, which squares and adds two plain intervals of Wilson."""
    (low1, high1), (low2, high2) = (
        stats.binomtest(k, n).proportion_ci(0.95, method="wilson") for k, n in ((k1, n1), (k2, n2))
    )
    return square_and_add(k1 / n1, (low1, high1), k2 / n2, (low2, high2))


@st.composite
def proportions(draw: st.DrawFn) -> tuple[int, int]:
    trials = draw(st.integers(1, 20_000))
    return draw(st.integers(0, trials)), trials


@given(proportions(), st.sampled_from(CONFIDENCES))
def test_wilson_is_scipy_s(counts: tuple[int, int], confidence: float) -> None:
    want = stats.binomtest(*counts).proportion_ci(confidence, method="wilsoncc")
    assert wilson(*counts, confidence) == pytest.approx((want.low, want.high), abs=1e-12)


@given(proportions(), st.sampled_from(CONFIDENCES))
def test_clopper_pearson_is_scipy_s(counts: tuple[int, int], confidence: float) -> None:
    want = stats.binomtest(*counts).proportion_ci(confidence, method="exact")
    assert clopper_pearson(*counts, confidence) == pytest.approx((want.low, want.high), abs=1e-9)


@given(proportions(), st.sampled_from(CONFIDENCES))
def test_intervals_stay_in_range_and_around_the_proportion(
    counts: tuple[int, int], confidence: float
) -> None:
    for interval in (wilson, clopper_pearson):
        low, high = interval(*counts, confidence)
        assert 0 <= low <= counts[0] / counts[1] <= high <= 1
        assert (low == 0) == (counts[0] == 0)
        assert (high == 1) == (counts[0] == counts[1])


def test_wilson_by_hand() -> None:
    # 81 of 263: an example of Newcombe (Stat. Med. 17, 1998), table I, method 4
    assert wilson(81, 263) == pytest.approx((0.2535, 0.3682), abs=1e-4)
    assert wilson(15, 148) == pytest.approx((0.0598, 0.1644), abs=1e-4)
    assert wilson(0, 20) == (0.0, pytest.approx(0.2005, abs=1e-4))
    assert wilson(1, 29) == pytest.approx((0.0018, 0.1963), abs=1e-4)


def test_clopper_pearson_by_hand() -> None:
    # no failure in n: the lower end is (alpha/2)^(1/n)
    assert clopper_pearson(299, 299) == (pytest.approx(0.025 ** (1 / 299)), 1.0)
    assert clopper_pearson(0, 100, 0.9) == (0.0, pytest.approx(1 - 0.05 ** (1 / 100)))


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
    assert newcombe(*counts) == pytest.approx(want, abs=6e-5)


def test_square_and_add_of_symmetric_intervals_is_the_normal_one() -> None:
    assert square_and_add(0.5, (0.47, 0.53), 0.3, (0.26, 0.34)) == pytest.approx((0.15, 0.25))
    low, high = square_and_add(-2.0, (-2.3, -1.6), 1.0, (0.6, 1.0))  # losses: any range, one-sided parts
    assert (low, high) == pytest.approx((-3.3, -3 + math.hypot(0.4, 0.4)))


def test_mean_interval_of_many_values_is_nearly_the_normal_one() -> None:
    half = stats.norm.ppf(0.995) * 0.1 / math.sqrt(40_000)
    low, high = mean_interval([0.4, 0.6], [20_000, 20_000], 0.99)
    assert (low, high) == pytest.approx((0.5 - half, 0.5 + half), abs=0.02 * half)


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
    with pytest.raises(ValueError, match="needs values, and values in"):
        mean_interval([])
    with pytest.raises(ValueError, match="needs values, and values in"):
        mean_interval([0.5, math.nan])


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
    with pytest.raises(ValueError, match="the mean of 1 values has no interval"):
        skewed_interval(0.5, 0.1, 0.0, 1)


def test_a_skewed_interval_by_hand() -> None:
    # skewness 2, n 100: t of 99 degrees is 1.98422, and 2 / (6 n) is 1 / 300
    low, high = skewed_interval(0.0, 1.0, 2.0, 100)
    assert low == pytest.approx(-1.5 * ((1 + 2 * (0.198422 - 1 / 300)) ** (1 / 3) - 1), abs=1e-6)
    assert high == pytest.approx(1.5 * (1 - (1 + 2 * (-0.198422 - 1 / 300)) ** (1 / 3)), abs=1e-6)


def test_the_mean_of_losses_with_a_long_tail_is_covered() -> None:
    """As rb-ge has them: of 100 log-normal losses, whose normal interval covers .87."""
    losses = np.random.default_rng(0).lognormal(0, 1.5, (1000, 100))
    column = LossOutput(ATTACKS.build("fgsm", eps=0.1))
    truth, hits = math.exp(1.5**2 / 2), []
    for row in losses:
        entry, _ = column.entries(np.stack([row, np.ones(100)], axis=1), {})
        hits.append(entry["ci95"][0] <= truth <= entry["ci95"][1])
    normal = abs(losses.mean(1) - truth) <= 1.96 * losses.std(1, ddof=1) / 10
    assert np.mean(hits) > 0.91 > 0.89 > np.mean(normal)
    entry, _ = column.entries(np.array([[2.0, 1.0]] * 3), {})
    assert entry["ci95"] == [2.0, 2.0]


def test_student_quantile() -> None:
    for confidence, freedom in ((0.95, 1), (0.9, 7), (0.99, 100)):
        want = stats.t.ppf((1 + confidence) / 2, freedom)
        assert student_quantile(confidence, freedom) == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize("counts", [(1, 0), (-1, 5), (6, 5)])
def test_impossible_counts_are_refused(counts: tuple[int, int]) -> None:
    for interval in (wilson, clopper_pearson):
        with pytest.raises(ValueError, match="is no proportion"):
            interval(*counts)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95])
def test_impossible_confidence_is_refused(confidence: float) -> None:
    for interval in (wilson, clopper_pearson):
        with pytest.raises(ValueError, match="not between 0 and 1"):
            interval(3, 5, confidence)


def test_normal_quantile() -> None:
    assert normal_quantile(0.95) == pytest.approx(stats.norm.ppf(0.975), abs=1e-12)


def exact_coverage(interval: object, trials: int, share: float) -> float:
    covered = [k for k in range(trials + 1) if (ends := interval(k, trials)) and ends[0] <= share <= ends[1]]  # type: ignore[operator]
    return float(stats.binom.pmf(covered, trials, share).sum())


def test_coverage_summed_over_all_outcomes() -> None:
    shares = np.linspace(0.005, 0.995, 100)
    rare = np.geomspace(1e-4, 0.005, 40)
    of_wilson = [exact_coverage(wilson, 60, share) for share in (*shares, *rare, *(1 - rare))]
    of_exact = [exact_coverage(clopper_pearson, 60, share) for share in shares]
    assert min(of_wilson) > 0.948  # without the correction .84 where shares are rare
    assert min(of_exact) >= 0.95


def test_newcombe_covers_the_difference() -> None:
    rng = np.random.default_rng(0)
    for p1, n1, p2, n2 in [(0.85, 300, 0.5, 200), (0.99, 500, 0.97, 400), (0.3, 50, 0.3, 80)]:
        draws = zip(rng.binomial(n1, p1, 2000), rng.binomial(n2, p2, 2000), strict=True)
        hits = [low <= p1 - p2 <= high for low, high in (newcombe(int(a), n1, int(b), n2) for a, b in draws)]
        assert np.mean(hits) == pytest.approx(0.95, abs=0.02)


def test_importing_the_statistics_loads_nothing_heavy() -> None:
    code = (
        "import sys, rbtools.probabilistic.estimate, rbtools.probabilistic as p; p.NOISES.load('uniform');"
        "sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'scipy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
