"""PR_D and ProbAcc from counts: by hand, exact counting rules, simulated coverage."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rbtools.probabilistic.estimate import (
    Estimator,
    findings,
    pr_d,
    prob_acc,
    quantiles,
    stopped_findings,
    undecided,
)
from rbtools.probabilistic.intervals import clopper_pearson


def test_pr_d_by_hand() -> None:
    # Below .8 the mean of 1, .9, .8 and a 0 under uniform weights has the law x^3 / (1 * .9 * .8).
    found = pr_d([10, 9, 8], 10)
    assert (found.value, found.n) == (pytest.approx(0.9), 3)
    assert found.interval[0] == pytest.approx((0.025 * 0.72) ** (1 / 3))
    # Fifty times the same: nearly normal, of the deviation .1 * sqrt(2 / 3) between images.
    found = pr_d([10, 9, 8] * 50, 10)
    half = 1.96 * 0.1 * (2 / 3 / 150) ** 0.5
    assert half < 0.9 - found.interval[0] < 2 * half and half < found.interval[1] - 0.9 < 1.2 * half


def test_images_and_not_draws_are_the_sampling_unit() -> None:
    # Half of the images always correct, half never: ten thousand draws per image give no further information.
    few, many = pr_d([0, 100] * 50, 100), pr_d([0, 10_000] * 50, 10_000)
    assert few.interval == pytest.approx(clopper_pearson(50, 100))
    assert many.interval == pytest.approx(clopper_pearson(50, 100))


def test_prob_acc_allows_exactly_rho_n_failures() -> None:
    # .29 * 100 is 28.999999999999996 in floating point, .07 * 100 is 7.000000000000001
    for samples, rho, allowed in ((100, 0.1, 10), (100, 0.07, 7), (100, 0.29, 29), (50, 0.01, 0), (7, 0, 0)):
        assert prob_acc([samples - allowed], samples, rho).value == 1.0
        assert prob_acc([samples - allowed - 1], samples, rho).value == 0.0


@pytest.mark.parametrize("images", [10, 25, 50])
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.slow
def test_prob_acc_of_few_images_is_covered(images: int, adaptive: bool) -> None:
    """Some images always fail, the others never: the chances of all numbers of failing images, summed."""
    ends = []
    for failing in range(images + 1):
        if adaptive:
            rows = [[100, 100, 1]] * (images - failing) + [[0, 100, 0]] * failing
            (entry,) = stopped_findings(rows, Estimator(rho=(0.1,)), 100, adaptive=True)
            ends.append(entry["ci95"])
        else:
            ends.append(prob_acc([100] * (images - failing) + [0] * failing, 100, 0.1).interval or (0, 0))
    for share in np.linspace(0.01, 0.5, 50):
        hit = [failing for failing, (low, high) in enumerate(ends) if low <= 1 - share <= high]
        assert stats.binom.pmf(hit, images, share).sum() >= 0.94


@pytest.mark.parametrize(("samples", "off"), [(20, 0.1), (100, 0.02)])
def test_prob_acc_of_few_draws_is_biased_and_its_interval_covers_all_the_same(
    samples: int, off: float
) -> None:
    """Failure rates ~ Beta(2, 7): images beside rho .1 pass and fail by chance, and more pass than fail."""
    rng, truth = np.random.default_rng(0), stats.beta.cdf(0.1, 2, 7)
    values, estimates = [], []
    for _ in range(20):
        counts = samples - rng.binomial(samples, rng.beta(2, 7, 1000))
        entry = findings(counts, Estimator(), samples, 0.1)
        assert entry["ci95"][0] <= truth <= entry["ci95"][1]
        assert entry["ci95"][0] <= entry["value"] <= entry["ci95"][1]
        assert str(samples) in entry["estimator"] and "biased" in entry["estimator"]
        values.append(entry["value"])
        estimates.append(entry["estimate"])
    assert np.mean(values) - truth > off  # what Wilson's interval would be put around
    assert np.mean(estimates) == pytest.approx(truth, abs=0.02)


@pytest.mark.slow
def test_prob_acc_of_many_images_is_covered_whatever_their_rates() -> None:
    """Nearly all images at .02, which no coarse grid of rates has: the intervals of 10,000 are narrow."""
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(50):
        failures = rng.binomial(100, np.where(rng.random(10_000) < 0.01, 1, 0.02))
        low, high = prob_acc((100 - failures).tolist(), 100, 0.1).interval or (0, 0)
        hits.append(low <= 0.99 <= high)
    assert np.mean(hits) >= 0.94


def test_verdicts_alone_bound_the_true_share_too() -> None:
    """Sampling that stopped keeps verdicts: by all draws, or by a test that errs on one image in twenty."""
    rng, samples, truth = np.random.default_rng(0), 100, stats.beta.cdf(0.05, 2, 7)
    for _ in range(10):
        failures = rng.binomial(samples, rng.beta(2, 7, 1000))
        rows = [[samples - k, samples, k <= 10, k <= 5, k <= 1] for k in failures.tolist()]
        _, found, _ = stopped_findings(rows, Estimator(rho=(0.1, 0.05, 0.01)), samples)
        assert found["value"] == np.mean(failures <= 5) and "estimate" not in found
        low, high = found["ci95"]
        assert low <= truth <= high and high - low < 0.2
    verdicts = [1] * 80 + [0] * 15 + [-1] * 5
    rows = [[samples, samples, verdict] for verdict in verdicts]
    (found,) = stopped_findings(rows, Estimator(rho=(0.1,)), samples, adaptive=True)
    wrong, right = clopper_pearson(20, 100)[1], clopper_pearson(85, 100)[1]
    assert found["ci95"] == pytest.approx([1 - wrong / 0.95, right / 0.95])


def test_nothing_to_average_gives_no_number_but_a_reason() -> None:
    for found in (pr_d([-1, -1], 10), prob_acc([-1, -1], 10, 0.1)):
        assert (found.value, found.interval, found.n) == (None, None, 0)
        assert "no image is classified correctly without noise" in str(found.reason)
        assert found.entry() == {"value": None, "n": 0, "reason": found.reason}
    assert pr_d([], 10).reason == "there are no images to count"


def test_entry_names_its_confidence() -> None:
    names = [[*pr_d([3], 4, confidence).entry()][-1] for confidence in (0.95, 0.99, 0.999)]
    assert names == ["ci95", "ci99", "ci99.9"]


def test_undecided_images_are_those_whose_draws_leave_both_open() -> None:
    # 299 draws without failure show a rate below .01 at 95 %, 298 do not
    assert undecided([299], 299, 0.01) == 0 and undecided([298], 298, 0.01) == 1
    for samples, rho, confidence in [(100, 0.1, 0.95), (50, 0.3, 0.9), (400, 0.01, 0.99)]:
        level = 1 - confidence
        for failures in range(samples + 1):
            passes = stats.binom.cdf(failures, samples, rho) <= level
            fails = stats.binom.sf(failures - 1, samples, rho) <= level
            assert undecided([samples - failures], samples, rho, confidence) == (not passes and not fails)
    # At rho 0 a failure decides, and nothing else does.
    assert undecided([5, 4, -1], 5, 0.0) == 1


def test_quantiles_are_images_with_exact_intervals() -> None:
    found = quantiles([10] * 90 + [7] * 5 + [2] * 5 + [-1] * 100, 10)
    assert [one["share"] for one in found] == [0.0, 0.01, 0.05, 0.1, 0.25, 0.5]
    assert [one["pr"] for one in found] == [0.2, 0.2, 0.2, 0.7, 1.0, 1.0]
    assert "ci99" in quantiles([1], 2, 0.99)[0] and quantiles([-1], 2) == []
    # The smallest of 100 is low by chance: its upper end allows for that.
    low, high = found[0]["ci95"]
    assert low == pytest.approx(clopper_pearson(2, 10)[0])
    chance = 1 - (1 - 0.025) ** (1 / 100)
    assert stats.binom.cdf(2, 10, high) == pytest.approx(chance)
    assert quantiles([7], 10)[0]["ci95"] == pytest.approx(clopper_pearson(7, 10))


@pytest.mark.parametrize(("a", "b"), [(2e7, 2e6), (2.0, 1.0), (0.2, 0.05)])
def test_quantiles_of_the_images_true_pr_are_covered(a: float, b: float) -> None:
    rng = np.random.default_rng(0)
    hits: dict[float, list[bool]] = {}
    for _ in range(200):
        true = np.sort(rng.beta(a, b, 300))
        for one in quantiles(rng.binomial(100, true).tolist(), 100):
            low, high = one["ci95"]
            assert low <= one["pr"] <= high
            rank = max(int(np.ceil(one["share"] * 300)), 1)
            hits.setdefault(one["share"], []).append(low <= true[rank - 1] <= high)
    assert all(np.mean(some) >= 0.94 for some in hits.values())
