"""Rank correlations beside scipy's, with ties, gaps, many and few records."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from rbtools.plots import record_values
from rbtools.scoring import correlate
from tests import runner

NAMES = ["a", "b", "c", "d"]
THEIRS = {"kendall": stats.kendalltau, "spearman": stats.spearmanr}


def table(n: int, *, ties: bool, gaps: bool = False, seed: int = 0) -> np.ndarray:
    """Four columns that have something to do with each other."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(n, 1)) + rng.normal(size=(n, 4)) * [0.3, 1, 3, 1]
    numbers[:, 3] *= -1
    if ties:
        numbers = numbers.round(1)
    if gaps:
        numbers[rng.random(numbers.shape) < [0, 0.2, 0.2, 0.5]] = np.nan
    return numbers


def theirs(kind: str, x: np.ndarray, y: np.ndarray) -> float:
    both = ~(np.isnan(x) | np.isnan(y))
    return float(THEIRS[kind](x[both], y[both]).statistic)


def values(kind: str, numbers: np.ndarray, **more: Any) -> correlate.Matrix:
    return correlate.matrix(kind, NAMES, numbers, NAMES, NAMES, **more)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [3, 17, 400])
@pytest.mark.parametrize("kind", correlate.KINDS)
def test_values_are_scipys(kind: str, n: int, ties: bool, gaps: bool) -> None:
    numbers = table(n, ties=ties, gaps=gaps and n > 3)
    found = values(kind, numbers)
    for i in range(4):
        for j in range(4):
            expected = theirs(kind, numbers[:, i], numbers[:, j])
            assert found.value[i, j] == pytest.approx(expected, abs=1e-12, nan_ok=True)
            assert found.n[i, j] == (~np.isnan(numbers[:, [i, j]])).all(1).sum()
    part = correlate.matrix(kind, NAMES, numbers, ["b"], ["d", "a"])
    np.testing.assert_array_equal(part.value, found.value[1:2, [3, 0]])


@pytest.mark.parametrize("kind", correlate.KINDS)
def test_integers_that_floats_round_are_told_apart(kind: str) -> None:
    given = [runner.model(f"m{i}", metrics={"ops": 2**60 + i, "acc": 0.5 + i / 100}) for i in range(5)]
    (line,) = runner.records(runner.run("corr", f"--kind {kind} --rows ops --cols acc", given))
    assert line["value"] == 1
    scored = runner.records(runner.run("score", "--metric ops --lower ops", given))
    assert [one["metrics"]["score"] for one in scored] == [1, 0.75, 0.5, 0.25, 0]
    columns = [record_values.column(given, name, "--metric") for name in ("ops", "acc")]
    assert correlate.floats([None, *columns[0], 2**60]) == pytest.approx(
        [np.nan, 0, 1, 2, 3, 4, 0], nan_ok=True
    )
    assert columns[1] == correlate.floats(columns[1])


@pytest.mark.parametrize("kind", correlate.KINDS)
def test_no_correlation_has_a_reason(kind: str) -> None:
    nan = np.nan
    numbers = np.array([[1, 5, nan, 1], [2, 5, nan, 2], [3, 5, 1, 3], [4, 5, 2, nan]])
    lines = {(one["row"], one["col"]): one for one in correlate.lines(values(kind, numbers))}
    assert lines["a", "b"]["value"] is None
    assert lines["a", "b"]["reason"] == "b: fewer than two distinct values"
    assert lines["b", "b"]["reason"] == "b: fewer than two distinct values"
    assert lines["a", "c"]["reason"] == "2 records have both columns, but 3 are needed"
    assert (lines["a", "d"]["value"], lines["a", "d"]["n"]) == (1.0, 3)


@pytest.mark.parametrize("kind", correlate.KINDS)
def test_bootstrap_intervals_are_student_s_on_fishers_scale(kind: str) -> None:
    numbers = table(40, ties=True)
    found = values(kind, numbers, bootstrap=30, seed=3)
    assert found.low is not None and found.high is not None
    rng = np.random.Generator(np.random.Philox(3))
    drawn = []
    for _ in range(30):
        sample = numbers[rng.integers(40, size=40)]
        drawn.append(theirs(kind, sample[:, 0], sample[:, 1]))
    value = float(found.value[0, 1])
    least = math.sqrt(0.437 / 36 if kind == "kendall" else (1 + value**2 / 2) / 37)
    half = stats.t.ppf(0.975, 39) * max(float(np.arctanh(drawn).std(ddof=1)), least)
    tau = 2 / math.pi * math.asin(2 * math.sin(math.pi * value / 6))
    outer = value + (3 * (value - tau) / 38 if kind == "spearman" else 0)
    want = [math.tanh(math.atanh(value * 39 / 40) - half), math.tanh(math.atanh(outer) + half)]
    assert [found.low[0, 1], found.high[0, 1]] == pytest.approx(want)
    assert [found.low[1, 1], found.high[1, 1]] == [1, 1]  # a column with itself
    (line,) = [one for one in correlate.lines(found, 30, 3) if (one["row"], one["col"]) == ("a", "b")]
    assert (line["bootstrap"], line["seed"], line["ci95"][0]) == (30, 3, found.low[0, 1])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "true"), [("kendall", 0.95), ("spearman", 0.99662)])
@pytest.mark.parametrize("sign", [1, -1])
def test_strong_correlations_of_ten_records_are_covered(kind: str, true: float, sign: int) -> None:
    """Of normal columns. Half of the samples have no pair out of order, and so have all their resamples."""
    rng, strength, hits = np.random.default_rng(0), math.sin(math.pi * 0.95 / 2), []
    for seed in range(100):
        numbers = rng.normal(size=(10, 2))
        numbers[:, 1] = sign * (strength * numbers[:, 0] + math.sqrt(1 - strength**2) * numbers[:, 1])
        found = correlate.matrix(kind, ["a", "b"], numbers, ["a"], ["b"], bootstrap=100, seed=seed)
        assert found.low is not None and found.high is not None
        hits.append(found.low[0, 0] <= sign * true <= found.high[0, 0])
    assert np.mean(hits) > 0.94
