"""PR_D and ProbAcc from counts: by hand, exact counting rules, simulated coverage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbtools.probabilistic.estimate import entries, pr_d, prob_acc, proportion
from rbtools.probabilistic.intervals import clopper_pearson, wilson
from rbtools.records import metrics


def test_pr_d_by_hand() -> None:
    # shares 1, .9, .8: mean .9, standard deviation .1, of which 1.96 / sqrt(3)
    found = pr_d([10, 9, 8], 10)
    half = 1.959964 * 0.1 / np.sqrt(3)
    assert found.value == pytest.approx(0.9)
    assert found.interval == pytest.approx((0.9 - half, min(1.0, 0.9 + half)), abs=1e-6)
    assert found.n == 3


def test_only_images_that_are_correct_without_noise_count() -> None:
    found = pr_d([10, 0, 5], 10, [True, False, True])
    assert (found.value, found.n) == (0.75, 2)
    assert pr_d([10, 0, 5], 10).value == 0.5
    passing = prob_acc([10, 10, 5], 10, 0.1, [True, False, True])
    assert (passing.value, passing.n) == (0.5, 2)


def test_pr_d_of_all_ones_has_the_exact_interval_over_images() -> None:
    found = pr_d([100] * 40, 100)
    assert (found.value, found.interval) == (1.0, clopper_pearson(40, 40))


def test_images_and_not_draws_are_the_sampling_unit() -> None:
    # Half of the images always right, half never: ten thousand draws an image teach nothing more.
    few, many = pr_d([0, 100] * 50, 100), pr_d([0, 10_000] * 50, 10_000)
    assert few.interval == pytest.approx(many.interval)
    low, high = few.interval or (0, 0)
    assert high - low == pytest.approx(2 * 1.96 * 0.5 / np.sqrt(99), rel=0.01)


@pytest.mark.parametrize(
    ("samples", "rho", "allowed"),
    [
        (100, 0.01, 1),
        (100, 0.05, 5),
        (100, 0.1, 10),
        (100, 0.07, 7),
        (100, 0.29, 29),
        (50, 0.01, 0),
        (7, 0.0, 0),
    ],
)
def test_prob_acc_allows_exactly_rho_n_failures(samples: int, rho: float, allowed: int) -> None:
    # .29 * 100 is 28.999999999999996 in floating point, .07 * 100 is 7.000000000000001
    assert prob_acc([samples - allowed], samples, rho).value == 1.0
    assert prob_acc([samples - allowed - 1], samples, rho).value == 0.0


def test_prob_acc_has_wilson_s_interval_over_images() -> None:
    found = prob_acc([100] * 70 + [0] * 30, 100, 0.05, confidence=0.9)
    assert (found.value, found.interval) == (0.7, wilson(70, 100, 0.9))


@given(st.lists(st.integers(0, 20), min_size=1, max_size=30), st.floats(0, 0.99), st.floats(0, 0.99))
def test_prob_acc_grows_with_the_tolerance(counts: list[int], rho: float, other: float) -> None:
    strict, lax = (prob_acc(counts, 20, r).value for r in sorted((rho, other)))
    assert strict is not None and lax is not None and strict <= lax
    found = pr_d(counts, 20)
    assert found.interval is not None and found.value is not None
    assert found.interval[0] <= found.value + 1e-12 and found.value <= found.interval[1] + 1e-12


def test_nothing_to_average_gives_no_number_but_a_reason() -> None:
    for found in (pr_d([0, 3], 10, [False, False]), prob_acc([0, 3], 10, 0.1, [False, False])):
        assert (found.value, found.interval, found.n) == (None, None, 0)
        assert "no image is classified correctly without noise" in str(found.reason)
        assert found.entry() == {"value": None, "n": 0, "reason": found.reason}
    assert (
        pr_d([], 10).reason
        == pr_d([], 10, []).reason
        == proportion(0, 0).reason
        == "there are no images to count"
    )


def test_entry_names_its_confidence() -> None:
    assert proportion(3, 4).entry() == {"value": 0.75, "n": 4, "ci95": list(wilson(3, 4))}
    assert "ci99" in proportion(3, 4, 0.99).entry() and "ci99.9" in proportion(3, 4, 0.999).entry()


def test_counts_out_of_range_are_a_mistake() -> None:
    for counts, samples in ([[11], 10], [[-1], 10], [[0], 0]):
        with pytest.raises(ValueError, match="must lie between 0 and the number of samples"):
            pr_d(counts, samples)
    with pytest.raises(ValueError, match="zip"):
        pr_d([1, 2], 10, [True])


def test_entries_of_a_radius() -> None:
    outcomes = np.array([100, 99, 90, -1, 100], dtype=np.int32)
    found = entries(outcomes, [0.1, 0.01], noise="uniform", gamma=8 / 255, samples=100, clip=True)
    names = [
        metrics.pr_name("uniform", 8 / 255),
        *(metrics.prob_acc_name("uniform", 8 / 255, r) for r in (0.1, 0.01)),
    ]
    assert [entry["metric"] for entry in found] == names
    assert names == [
        "pr.uniform.0.0313725",
        "probacc.uniform.0.0313725.0.1",
        "probacc.uniform.0.0313725.0.01",
    ]
    assert [entry["value"] for entry in found] == [pytest.approx(0.9725), 1.0, 0.75]
    asked = {
        "noise": "uniform",
        "gamma": 8 / 255,
        "samples": 100,
        "clip": True,
        "denominator": "correct",
        "n": 4,
    }
    for entry in found:
        assert asked.items() <= entry.items()
        assert type(entry["value"]) is float and all(type(end) is float for end in entry["ci95"])
    assert "rho" not in found[0] and found[2]["rho"] == 0.01


def test_entries_of_a_model_that_is_never_right() -> None:
    found = entries(np.full(3, -1), [0.1], noise="uniform", gamma=0.1, samples=10)
    assert [(entry["value"], entry["n"]) for entry in found] == [(None, 0)] * 2
    assert all("reason" in entry and "ci95" not in entry for entry in found)


@pytest.mark.parametrize(("a", "b"), [(2.0, 1.0), (8.0, 0.5), (0.5, 0.5)])
def test_pr_d_interval_covers_as_often_as_it_says(a: float, b: float) -> None:
    # True PR of an image ~ Beta(a, b), counts binomial given it: PR_D is the mean of the Beta.
    rng = np.random.default_rng(1)
    hits = []
    for _ in range(1500):
        counts = rng.binomial(100, rng.beta(a, b, 300))
        low, high = pr_d(counts.tolist(), 100).interval or (0, 0)
        hits.append(low <= a / (a + b) <= high)
    assert np.mean(hits) == pytest.approx(0.95, abs=0.015)
