"""Models and claims compared: against enumerations, and coverage where the truth is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from rbtools.probabilistic import intervals
from rbtools.scoring import paired
from rbtools.scoring.remeasured import hypergeometric, judged

SETS = [
    np.random.default_rng(seed).random((2, 40 + 20 * seed)) < np.random.default_rng(seed).random((2, 1))
    for seed in range(50)
]


def mid_p(count: int, n: int) -> tuple[float, float]:
    """The mid-P interval of a share, by its definition."""

    def tail(share: float, of: int) -> float:
        outcomes = stats.binom.pmf(np.arange(n + 1), n, share)
        beyond = outcomes[count + 1 :] if of > 0 else outcomes[:count]
        return float(beyond.sum() + outcomes[count] / 2 - 0.025)

    low = optimize.brentq(tail, 0, count / n, args=(1,)) if count else 0.0
    high = optimize.brentq(tail, count / n, 1, args=(-1,)) if count < n else 1.0
    return low, high


@pytest.mark.parametrize("models", SETS)
def test_an_enumeration_gives_the_same(models: np.ndarray) -> None:
    first, second = models
    n = len(first)
    gained = sum(bool(a and not b) for a, b in zip(first, second, strict=True))
    lost = sum(bool(b and not a) for a, b in zip(first, second, strict=True))
    assert paired.changed(first, second) == (gained, lost)
    (p,) = paired.mcnemar(np.array([gained]), np.array([lost]))
    assert p == pytest.approx(stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1)
    (low,), (high,) = paired.interval(*(np.array([count]) for count in (gained, lost, n)))
    a, b = gained / n, lost / n
    (a_low, a_high), (b_low, b_high) = mid_p(gained, n), mid_p(lost, n)
    both = -2 * -np.sqrt(a * b / ((1 - a) * (1 - b)))
    below = (a - a_low) ** 2 + (b_high - b) ** 2 + both * (a - a_low) * (b_high - b)
    above = (a_high - a) ** 2 + (b - b_low) ** 2 + both * (a_high - a) * (b - b_low)
    assert (low, high) == pytest.approx((a - b - np.sqrt(below), a - b + np.sqrt(above)), abs=1e-9)
    assert low <= first.mean() - second.mean() <= high


@pytest.mark.parametrize(("changes", "most"), [(0, 1.0), (1, 1.0), (5, 0.98), (50, 0.96)])
@pytest.mark.parametrize("gained", [0.5, 0.75, 1.0])
@pytest.mark.parametrize("n", [100, 1000, 10_000])
def test_the_interval_holds_the_truth(n: int, changes: int, gained: float, most: float) -> None:
    """Coverage, exactly: a sum over all numbers of images that may change."""
    one, other = np.array([(a, b) for a in range(100) for b in range(100) if a + b <= n]).T
    shares = np.array([changes * gained, changes * (1 - gained)]) / n
    low, high = paired.interval(one, other, np.full(len(one), n))
    rest = n - one - other
    chance = stats.multinomial.pmf(np.stack([one, other, rest], 1), n, [*shares, 1 - shares.sum()])
    truth = shares[0] - shares[1]
    assert chance.sum() == pytest.approx(1, abs=1e-6)
    assert 0.949 < chance[(low <= truth) & (truth <= high)].sum() <= most + 1e-6


@pytest.mark.parametrize(("gained", "lost"), [(8, 8), (12, 8), (2, 40)])
@pytest.mark.parametrize("margin", [0.005, 0.02])
def test_the_images_needed_are_wald_s_for_many_changes(gained: int, lost: int, margin: float) -> None:
    a, b = gained / 200, lost / 200
    needed = paired.images_needed(gained, lost, 200, a - b - margin)
    wald = stats.norm.ppf(0.975) ** 2 * (a + b - (a - b) ** 2) / margin**2
    assert needed == pytest.approx(wald, rel=0.12)


def test_the_images_needed_without_changes_are_the_rule_of_three() -> None:
    assert paired.images_needed(0, 0, 205, -0.01) == pytest.approx(np.log(20) / 0.01, rel=0.05)
    assert paired.images_needed(1, 5, 205, -0.01) is None  # the difference itself is below
    assert paired.images_needed(1, 1, 205, -1e-9) is None  # more than 10 million


def test_holm_s_correction() -> None:
    assert paired.holm(np.array([0.01, 0.04, 0.03, 0.005])) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert paired.holm(np.array([0.9, 0.8])).tolist() == [1, 1]
    assert paired.holm(np.array([])).tolist() == []


def test_means_over_seeds_are_compared_by_student_s_t() -> None:
    """Of images without uncertainty, one mean against a number is the t-test of one sample."""
    values = np.array([0.5, 0.54, 0.52])
    still = np.full(100, 0.02)
    between = np.array([values.var(ddof=1) / 3, 0])
    found = paired.of_means(0.02, still, between, np.array([2.0, 1.0]))
    test = stats.ttest_1samp(values, 0.5)
    assert found.p == pytest.approx(test.pvalue)
    assert found.ci95 == pytest.approx(test.confidence_interval() - np.array(0.5))
    drawn = np.random.default_rng(0).normal(0.02, 0.01, 4000)
    alone = paired.of_means(0.02, drawn, np.zeros(2), np.ones(2))
    assert alone.ci95 == pytest.approx((0.0004, 0.0396), abs=0.001)
    assert alone.p == pytest.approx(0.0455, abs=0.006)
    both = paired.of_means(0.02, drawn, between, np.array([2.0, 1.0]))
    assert both.p > found.p and both.ci95[0] < found.ci95[0] and both.ci95[1] > found.ci95[1]
    few = paired.of_means(-0.16, drawn, np.array([0.02, 0.02]), np.ones(2))
    assert few.ci95 == (-1, 1)  # two seeds each: Student's interval alone is wider
    assert paired.of_means(0.0, np.zeros(9), np.zeros(2), np.ones(2)).p == 1


def attack(right: int, n: int, **more: Any) -> dict[str, Any]:
    named = {"metric": "pgd20.8", "attack": "pgd", "eps": 8 / 255, "norm": "linf", "steps": 20}
    return {**named, "value": right / n, "n": n, "ci95": list(intervals.wilson(right, n)), **more}


CLEAN = {"metric": "acc", "value": 0.9, "n": 1000}
NONE: dict[str, Any] = {"metric": "pr.uniform.0.1", "value": None, "n": 0}


@pytest.mark.parametrize(
    ("claim", "seen", "verdict"),
    [
        *((attack(500, 1000), attack(seen, 1000), "match") for seen in (500, 510, 490)),
        (attack(500, 1000), attack(511, 1000), "differs"),
        (CLEAN, {**CLEAN, "value": 0.902}, "match"),
        (CLEAN, {**CLEAN, "value": 0.903}, "differs"),
        (NONE, dict(NONE), "match"),
        (NONE, {**NONE, "value": 0.5}, "differs"),
    ],
)
def test_all_images_may_differ_by_what_arithmetic_turns(claim: Any, seen: Any, verdict: str) -> None:
    assert judged(claim, seen)["verdict"] == verdict


ALIKE = {"environment": "torch 2.13.0+cpu, some processor, AVX2", "device": "cpu", "precision": "bf16"}


def test_of_what_is_computed_alike_fewer_images_may_differ() -> None:
    claim = attack(500, 1000, **ALIKE)
    assert judged(claim, attack(501, 1000, **ALIKE))["verdict"] == "match"  # threads and batches round, too
    one = judged(claim, attack(502, 1000, **ALIKE))
    assert one["verdict"] == "differs" and "environment are the same" in one["test"]
    few = attack(50, 99, **ALIKE), attack(51, 99, **ALIKE)
    assert judged(*few)["verdict"] == "differs"
    for fact in ALIKE:  # elsewhere arithmetic may turn some
        assert judged(claim, attack(502, 1000, **{**ALIKE, fact: "other"}))["verdict"] == "match"
    assert judged(attack(500, 1000), attack(502, 1000))["verdict"] == "match"  # the claim does not say
    assert judged(claim, attack(51, 100, **ALIKE), images=1000)["verdict"] == "match"  # a random part


def test_of_shares_that_are_no_counts_one_image_may_differ_too() -> None:
    claim = {"metric": "probacc.uniform.0.1.0.05", "noise": "uniform", "value": 0.5, "n": 355, **ALIKE}
    assert judged(claim, {**claim, "value": 0.5 + 0.9 / 355})["verdict"] == "match"
    assert judged(claim, {**claim, "value": 0.5 + 1.1 / 355})["verdict"] == "differs"
    few = {**claim, "n": 50}
    assert judged(few, {**few, "value": 0.5 + 1 / 50})["verdict"] == "differs"
    loss = {"metric": "wci", "value": 10.0, "n": 355, **ALIKE}
    assert judged(loss, {**loss, "value": 10.002})["verdict"] == "differs"


@pytest.mark.parametrize(
    ("seen", "part", "right", "size"), [(40, 100, 500, 1000), (3, 10, 2, 40), (0, 7, 90, 99)]
)
def test_the_hypergeometric_test_is_that_of_scipy(seen: int, part: int, right: int, size: int) -> None:
    known = stats.hypergeom(size, right, part)
    expected = part * right / size
    p = sum(known.pmf(k) for k in range(part + 1) if abs(k - expected) >= abs(seen - expected) - 1e-9)
    assert hypergeometric(seen, part, right, size) == pytest.approx(p, rel=1e-9)


def test_other_numbers_are_compared_by_their_standard_errors() -> None:
    claim = {"metric": "pr.uniform.0.1", "noise": "uniform", "value": 0.9, "n": 800, "ci95": [0.88, 0.92]}
    assert judged(claim, {**claim, "value": 0.905})["verdict"] == "match"
    assert judged(claim, {**claim, "value": 0.92})["verdict"] == "differs"
    part = {**claim, "n": 80, "ci95": [0.85, 0.95]}
    assert judged(claim, {**part, "value": 0.93}, 1000)["verdict"] == "match"
    assert judged(claim, {**part, "value": 0.75}, 1000)["verdict"] == "differs"
    del part["ci95"], part["n"]
    assert judged(claim, part, 1000)["verdict"] == "cannot be told"
