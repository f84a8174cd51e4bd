"""Stopping rules: what they decide, when, and how often they are wrong."""

from __future__ import annotations

import numpy as np
import pytest

from rbtools.probabilistic import sequential


def verdicts(rule: sequential.Rule, failures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For runs (M, N) of True where a copy fails: the verdict 1, 0, -1, and after how many draws."""
    counts = np.minimum(failures.cumsum(1), len(rule.passes) - 1)
    draws = np.arange(1, failures.shape[1] + 1)
    passed, failed = draws >= rule.passes[counts], draws <= rule.fails[counts]
    decided = passed | failed
    first = np.where(decided.any(1), decided.argmax(1), failures.shape[1] - 1)
    verdict = np.where(decided.any(1), passed[np.arange(len(first)), first], -1)
    return verdict, first + 1


@pytest.mark.parametrize(("samples", "rho", "above"), [(20, 0.1, False), (20, 0.1, True), (7, 0.3, False)])
def test_the_exact_stop_says_what_all_draws_would(samples: int, rho: float, above: bool) -> None:
    failures = np.random.default_rng(0).random((500, samples)) < 0.12
    verdict, draws = verdicts(sequential.fixed(samples, rho, above), failures)
    total = failures.sum(1)
    want = 1 - total / samples > 1 - rho + 1e-9 if above else 1 - total / samples >= 1 - rho - 1e-9
    assert (verdict == want).all()
    most = sequential.allowed(samples, rho, above)
    for run, verdict_, stop in zip(failures, verdict, draws, strict=True):
        seen = run[:stop].sum()  # the decision is certain now, but not one draw earlier
        assert seen == most + 1 if not verdict_ else seen + samples - stop == most
    assert draws.mean() < samples


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
