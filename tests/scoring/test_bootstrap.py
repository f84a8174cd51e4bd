"""Rank intervals: what they come to where it is known, and for close and equal models; all pairs compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from rbtools.scoring import bootstrap
from rbtools.scoring.rank_order import SortKey
from rbtools.scoring.rank_sets import Drawn, rank_sets
from tests.runner import Record

ACC = SortKey("acc", True)


def record(name: str, value: float, **entry: Any) -> Record:
    evals = [{"metric": "acc", "value": value, **entry}]
    return {"arch": {"name": name}, "dataset": "d", "metrics": {"acc": value}, "evals": evals}


def draws(shares: Any = None, size: int = 2000, seed: int = 0) -> bootstrap.BootstrapDraws:
    return bootstrap.BootstrapDraws(size, seed, shares or (lambda record, entry: None))


@pytest.mark.parametrize("known", ["images", "value and n"])
@pytest.mark.parametrize(("right", "n"), [(320, 400), (100, 100), (99, 100), (0, 50)])
def test_an_accuracy_s_draws_have_the_mid_p_interval(known: str, right: int, n: int) -> None:
    """Also where all are right, of which resampling makes no other share."""
    row = (np.arange(n) < right).astype(np.float32)
    shares = (lambda record, entry: (row, np.ones(n, np.float32))) if known == "images" else None
    drawn = draws(shares, size=20_000).number(record("a", right / n, n=n), "acc")
    low, high = np.percentile(drawn, [2.5, 97.5])

    def tails(share: float) -> tuple[float, float]:
        half = stats.binom.pmf(right, n, share) / 2
        return stats.binom.sf(right, n, share) + half, stats.binom.cdf(right - 1, n, share) + half

    assert (tails(low)[0] if right else 0.025) == pytest.approx(0.025, abs=0.006)
    assert (tails(high)[1] if right < n else 0.025) == pytest.approx(0.025, abs=0.006)
    assert (low == 0) == (right == 0) and (high == 1) == (right == n)


def test_a_rounded_share_of_n_images_is_drawn_and_a_loss_is_not() -> None:
    some, one = draws(), record("a", 0.567, n=64)  # published: no whole number of 64 images
    drawn = some.number(one, "acc")
    assert drawn.mean() == pytest.approx(0.567, abs=0.02) and drawn.std() == pytest.approx(0.062, abs=0.01)
    loss = {"metrics": {"loss": 0.567}, "evals": [{"metric": "loss", "value": 0.567, "n": 64}]}
    assert some.number(loss, "loss").std() == 0
    assert [bootstrap.SOURCES[place] for place in sorted(some.sources.values())][1] == "nothing"
    wide = some.number(record("a", 0.80001, n=400, ci95=[0.70, 0.90]), "acc")  # as its interval
    assert np.percentile(wide, [2.5, 97.5]) == pytest.approx([0.7, 0.9], abs=0.01)


def test_the_weights_of_images_are_of_these_images_and_the_seed() -> None:
    one, entry = draws(size=9), {"metric": "acc", "value": 1}
    base = one._weights(record("a", 1), entry, 5)[0]
    assert np.array_equal(one._weights(record("b", 0), {**entry, "value": 0}, 5)[0], base)
    others = [{"dataset": "e"}, {"split": "train"}, {"indices": "i"}, {"class_map": "c"}]
    found = [one._weights(record("a", 1), entry | change, 5)[0] for change in others]
    found += [one._weights({**record("a", 1), "dataset": "e2"}, entry, 5)[0]]
    found += [one._weights(record("a", 1), entry, 6)[0][:, :5]]
    found += [draws(size=9, seed=1)._weights(record("a", 1), entry, 5)[0]]
    assert len({weights.tobytes() for weights in (base, *found)}) == 1 + len(found)


def test_images_are_resampled_together() -> None:
    hard = np.arange(100) < 50  # both fail on the same images, but one on ten images more
    outcomes = {"a": hard, "b": hard & (np.arange(100) >= 10)}
    every = np.ones(100, np.float32)
    some = draws(lambda record, entry: (outcomes[record["arch"]["name"]].astype(np.float32), every))
    pair = [record("a", 0.5, n=100), record("b", 0.4, n=100)]
    first, second = (some.number(one, "acc") for one in pair)
    assert first.std() == pytest.approx(0.05, rel=0.1)
    assert (first > second).mean() > 0.99
    # Drawn apart, b would be ahead in some one of ten.
    intervals = bootstrap.of_ranking(some, ACC, [[one] for one in pair])
    assert intervals[0].rank == (1, 1) and intervals[1].rank == (2, 2)
    alone = bootstrap.of_ranking(draws(), ACC, [[one] for one in pair])
    assert alone[0].rank == (1, 2) and alone[1].rank == (1, 2)


def test_an_expression_is_drawn_from_its_metrics() -> None:
    one = record("a", 0.5, n=100)
    one["metrics"]["pgd"] = 0.25
    some = draws(size=50)
    assert np.sort(some.number(one, "mean(acc, pgd)")) == pytest.approx(
        np.sort(some.number(one, "acc") + 0.25) / 2
    )
    assert np.isnan(some.number(one, "fgsm + acc")).all()
    assert np.isnan(some.number({"arch": {"name": "not measured"}}, "acc")).all()
    same = [np.sort(some.number(one, text)) for text in ("mean(acc, pgd) + 0", "mean(*)")]
    assert same[0] == pytest.approx(same[1])
    assert set(some.number({**one, "arch": {"params": 7}}, "arch.params")) == {7.0}


@pytest.mark.parametrize("text", ["mean(pgd.*)", "(pgd.1 + pgd.2 + pgd.3 + pgd.4) / 4"])
@pytest.mark.parametrize("known", ["images", "value and n"])
def test_metrics_of_the_same_images_average_no_error_out(text: str, known: str) -> None:
    """Four accuracies that are alike on every image: their mean is no more certain than one of them."""
    names = [f"pgd.{number}" for number in range(1, 5)]
    evals = [{"metric": name, "value": 1.0, "n": 10} for name in names]
    one = {"arch": {"name": "a"}, "metrics": dict.fromkeys(names, 1.0), "evals": evals}
    every = np.ones(10, np.float32)
    some = draws((lambda record, entry: (every, every)) if known == "images" else None)
    mean, single = some.number(one, text), some.number(one, "pgd.1")
    assert np.percentile(mean, 2.5) == pytest.approx(np.percentile(single, 2.5), abs=0.05)
    apart = some.number(one, "pgd.1 - pgd.2")
    assert apart.std() > single.std()


def test_clear_ranks_are_certain_and_close_ones_are_not() -> None:
    values = (0.9, 0.52, 0.5, 0.1)
    members = [[record(str(value), value, n=200)] for value in values]
    found = bootstrap.of_ranking(draws(), ACC, members)
    assert [one.rank for one in found] == [(1, 1), (2, 3), (2, 3), (4, 4)]
    assert found[0].value == pytest.approx((0.855, 0.94), abs=0.01)
    lowest = bootstrap.of_ranking(draws(), SortKey("acc", False), members)
    assert [one.rank for one in lowest] == [(4, 4), (2, 3), (2, 3), (1, 1)]
    lacking = bootstrap.of_ranking(draws(), SortKey("fgsm", True), members[:1])
    assert lacking == [bootstrap.Interval(None, None)] and bootstrap.of_ranking(draws(), ACC, []) == []


def test_members_of_a_group_give_student_s_interval() -> None:
    wide = [record("a", value) for value in (0.1, 0.5, 0.9)]
    narrow = [record("b", value) for value in (0.54, 0.55, 0.56)]
    found = bootstrap.of_ranking(draws(), ACC, [wide, narrow])
    half = stats.t.ppf(0.975, 2) * 0.4 / np.sqrt(3)
    assert found[0].value == pytest.approx((0.5 - half, 0.5 + half)) and found[0].rank == (1, 2)
    assert found[1].value == pytest.approx((0.55 - half / 40, 0.55 + half / 40))


def test_a_score_is_made_anew_of_metrics_that_are_drawn() -> None:
    terms = [{"metric": name, "weight": 1.0, "higher": name == "acc"} for name in ("acc", "cost")]
    some = []
    for name, acc, cost in (("a", 0.9, 3.0), ("b", 0.5, 2.0), ("c", 0.1, 1.0)):
        one = record(name, acc, n=50)
        one["metrics"] |= {"cost": cost, "score": 0.5}
        one["evals"].append({"metric": "score", "value": 0.5, "terms": terms, "missing": "refuse"})
        some.append(one)
    sample = draws(size=100)
    drawn = sample.composite(some, [None] * 3)
    acc = np.stack([sample.number(one, "acc") for one in some])
    assert drawn[0] == pytest.approx(np.full(100, 0.5)) and drawn[2] == pytest.approx(drawn[0])
    middle = (acc[1].mean() - acc[2].mean()) / (acc[0].mean() - acc[2].mean())
    assert drawn[1].mean() == pytest.approx((middle + 0.5) / 2, abs=0.01) and drawn[1].std() > 0.01


CLOSE = 0.9 - 0.002 * np.arange(10)
TIED = np.full(10, 0.5)


def intervals_of(rows: np.ndarray, members: int, seed: int, outcomes: bool) -> list[bootstrap.Interval]:
    """The intervals of groups of as many rows (N, images) of outcomes each, one group after the other."""
    every = np.ones(rows.shape[1], np.float32)
    shares = (lambda record, entry: (rows[int(record["arch"]["name"])], every)) if outcomes else None
    records = [record(str(name), float(row.mean(dtype=float)), n=len(row)) for name, row in enumerate(rows)]
    return bootstrap.of_ranking(
        draws(shares, 200, seed), ACC, [records[at : at + members] for at in range(0, len(rows), members)]
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
        hits += covered(intervals_of(rows, 1, seed, outcomes), true)
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
        intervals = intervals_of((hard + own < skill).astype(np.float32), members, seed, outcomes)
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
