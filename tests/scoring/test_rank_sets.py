"""Intervals of ranks: they hold for close and equal models, and are what comparing all pairs gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from rbtools.scoring import bootstrap
from rbtools.scoring.rank_order import SortKey
from rbtools.scoring.rank_sets import Drawn, rank_sets

ACC = SortKey("acc", True)
CLOSE = 0.9 - 0.002 * np.arange(10)
TIED = np.full(10, 0.5)


def record(name: int, right: np.ndarray) -> dict[str, Any]:
    value, n = int(right.sum()) / len(right), len(right)
    evals = [{"metric": "acc", "value": value, "n": n}]
    return {"checkpoint": str(name), "metrics": {"acc": value}, "evals": evals}


def found(rows: np.ndarray, members: int, seed: int, outcomes: bool) -> list[bootstrap.Interval]:
    """The intervals of groups of as many rows (N, images) of outcomes each, one group after the other."""
    every = np.ones(rows.shape[1], np.float32)
    shares = (lambda record, entry: (rows[int(record["checkpoint"])], every)) if outcomes else None
    draws = bootstrap.BootstrapDraws(200, seed, shares or (lambda record, entry: None))
    records = [record(name, row) for name, row in enumerate(rows)]
    return bootstrap.of_ranking(
        draws, ACC, [records[at : at + members] for at in range(0, len(rows), members)]
    )


def covered(intervals: list[bootstrap.Interval], true: np.ndarray) -> list[bool]:
    """Whether each interval has all ranks that a number may have among the true ones; equal ones share."""
    ranks = [one.rank or (0, 0) for one in intervals]
    return [
        low <= 1 + (true > own).sum() and (true >= own).sum() <= high
        for (low, high), own in zip(ranks, true, strict=True)
    ]


@pytest.mark.parametrize("outcomes", [True, False])
@pytest.mark.parametrize("images", [10, 100])
@pytest.mark.parametrize("true", [CLOSE, TIED], ids=["close", "tied"])
def test_ranks_of_ten_close_models_are_covered(true: np.ndarray, images: int, outcomes: bool) -> None:
    rng, hits = np.random.default_rng(1), []
    for seed in range(60):
        hard = rng.normal(size=images) if outcomes else np.zeros(images)  # in common
        own = rng.normal(size=(10, images))
        limit = stats.norm.ppf(true)[:, None] * (np.sqrt(2) if outcomes else 1)
        rows = (hard + own < limit).astype(np.float32)
        hits += covered(found(rows, 1, seed, outcomes), true)
    assert np.mean(hits) > 0.94


@pytest.mark.parametrize("outcomes", [True, False])
@pytest.mark.parametrize(("images", "members"), [(1000, 3), (20, 5)])
def test_means_over_seeds_are_covered(images: int, members: int, outcomes: bool) -> None:
    """The mean over all seeds, of which two to five were trained; all fail on much the same images."""
    rng, true, values, ranks = np.random.default_rng(2), np.full(4, 0.8), [], []
    for seed in range(60):
        skill = stats.norm.ppf(0.8) * np.sqrt(1.04) + 0.2 * rng.normal(size=(4 * members, 1))
        hard = np.sqrt(0.9) * rng.normal(size=images)
        own = np.sqrt(0.1) * rng.normal(size=(4 * members, images))
        intervals = found((hard + own < skill).astype(np.float32), members, seed, outcomes)
        ranks += covered(intervals, true)
        values += [low <= 0.8 <= high for low, high in (one.value or (1, 0) for one in intervals)]
    assert np.mean(values) > 0.93 and np.mean(ranks) > 0.93


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("grouped", [True, False])
def test_sets_are_those_of_comparing_all_pairs(higher: bool, joint: bool, grouped: bool) -> None:
    """Of 700 numbers, which are compared in three blocks, each with those near it."""
    rng, count, size = np.random.default_rng(3), 700, 50
    deviation = rng.uniform(0.01, 0.1, (count, 1))
    draws = rng.uniform(0, 5, (count, 1)) + deviation * rng.normal(size=(count, size))
    draws += 0.1 * rng.normal(size=size) if joint else 0
    several = grouped & (rng.random(count) < 0.3)
    between, freedom = np.where(several, 0.001, 0.0), np.where(several, 4.0, 1.0)
    rarity = np.where(rng.random(count) < 0.5, 1 / 200, 0.0)
    low, high = rank_sets(Drawn(draws, between, freedom, rarity, joint), higher)

    covariance = np.cov(draws) if joint else np.diag(draws.var(1, ddof=1))
    of_draws = np.add.outer(*2 * [np.diag(covariance)]) - 2 * covariance
    variance = of_draws + np.add.outer(between, between)
    inverse = of_draws / (size - 1) + np.add.outer(between / freedom, between / freedom)
    inverse = np.divide(inverse, variance, out=np.ones_like(variance), where=variance > 1e-12)
    quantile = stats.t.isf(0.025 / (count - 1), 1 / inverse)
    apart = np.subtract.outer(draws.mean(1), draws.mean(1)) * (1 if higher else -1)
    variance += apart**2 * np.add.outer(rarity, rarity) / 2
    certain = apart > quantile * np.sqrt(variance) * (1 + 1e-9)
    np.testing.assert_allclose(low, 1 + certain.sum(0), atol=1)  # quantiles are interpolated
    np.testing.assert_allclose(high, count - certain.sum(1), atol=1)
    exact = np.mean([*(low == 1 + certain.sum(0)), *(high == count - certain.sum(1))])
    assert exact == 1 if not grouped else exact > 0.9


def test_exact_numbers_have_exact_ranks_and_equal_ones_share_them() -> None:
    numbers = np.array([0.3, 0.1 + 0.2 - 0.3, 0.5, 0.3, 0.3])
    nothing = np.zeros(5)
    drawn = Drawn(np.repeat(numbers[:, None], 20, 1), nothing, nothing + 1, nothing, False)
    low, high = rank_sets(drawn, True)
    assert (low.tolist(), high.tolist()) == ([2, 5, 1, 2, 2], [4, 5, 1, 4, 4])
    alone = Drawn(drawn.draws[:1], *(nothing[:1] + add for add in (0, 1, 0)), False)
    assert [end.tolist() for end in rank_sets(alone, True)] == [[1], [1]]
