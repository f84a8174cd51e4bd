"""Rank intervals: from images, from value and n, from intervals; what they come to where it is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rbtools.scoring import bootstrap
from rbtools.scoring.rank import Key

Record = dict[str, Any]
ACC = Key("acc", True)


def record(name: str, value: float, **entry: Any) -> Record:
    evals = [{"metric": "acc", "value": value, **entry}]
    return {"arch": {"name": name}, "dataset": "d", "metrics": {"acc": value}, "evals": evals}


def draws(shares: Any = None, size: int = 2000, seed: int = 0) -> bootstrap.Draws:
    return bootstrap.Draws(size, seed, shares or (lambda record, entry: None))


def test_an_accuracy_is_drawn_from_the_binomial_distribution() -> None:
    drawn = draws().number(record("a", 0.8, n=400), "acc")
    assert drawn.mean() == pytest.approx(0.8, abs=0.003)
    assert drawn.std() == pytest.approx((0.8 * 0.2 / 400) ** 0.5, rel=0.1)
    assert np.allclose(drawn * 400, (drawn * 400).round())


def test_what_is_no_count_is_drawn_as_wide_as_its_interval() -> None:
    drawn = draws().number(record("a", 0.80001, n=400, ci95=[0.70, 0.90]), "acc")
    assert np.percentile(drawn, [2.5, 97.5]) == pytest.approx([0.7, 0.9], abs=0.01)


def test_without_n_and_interval_a_number_is_exact_and_that_is_noted() -> None:
    some = draws()
    one = record("a", 0.5)
    assert set(some.number(one, "acc")) == {0.5}
    assert some.sources == {id(one): bootstrap.SOURCES.index("nothing")}


def test_images_are_resampled_together() -> None:
    hard = np.arange(100) < 50  # both fail on the same images, but one on one image more
    outcomes = {"a": hard, "b": hard & (np.arange(100) != 3)}
    every = np.ones(100, np.float32)
    some = draws(lambda record, entry: (outcomes[record["arch"]["name"]].astype(np.float32), every))
    pair = [record("a", 0.5, n=100), record("b", 0.49, n=100)]
    first, second = (some.number(one, "acc") for one in pair)
    assert first.std() == pytest.approx(0.05, rel=0.1)
    assert ((first - second) >= -1e-12).all()
    # Drawn apart, b would be ahead in some four of ten.
    intervals = bootstrap.of_ranking(some, ACC, [[one] for one in pair])
    assert intervals[0].rank == (1, 1) and intervals[1].rank == (1, 2)
    alone = bootstrap.of_ranking(draws(), ACC, [[one] for one in pair])
    assert alone[0].rank == (1, 2) and alone[1].rank == (1, 2)


def test_images_that_do_not_count_are_in_no_denominator() -> None:
    counts = (np.arange(100) < 50).astype(np.float32)
    some = draws(lambda record, entry: (counts * 0.5, counts))
    assert some.number(record("a", 0.5, n=50), "acc") == pytest.approx(0.5)


def test_draws_depend_on_seed_and_record_alone() -> None:
    a, b = record("a", 0.5, n=100), record("b", 0.5, n=100)
    assert (draws().number(a, "acc") == draws().number(a, "acc")).all()
    assert (draws().number(a, "acc") != draws(seed=1).number(a, "acc")).any()
    assert (draws().number(a, "acc") != draws().number(b, "acc")).any()


def test_an_expression_is_drawn_from_its_metrics() -> None:
    one = record("a", 0.5, n=100)
    one["metrics"]["pgd"] = 0.25
    some = draws(size=50)
    assert some.number(one, "mean(acc, pgd)") == pytest.approx((some.number(one, "acc") + 0.25) / 2)
    assert np.isnan(some.number(one, "fgsm + acc")).all()
    assert some.number(one, "mean(acc, pgd) + 0") == pytest.approx(some.number(one, "mean(*)"))
    assert set(some.number({**one, "arch": {"params": 7}}, "arch.params")) == {7.0}


def test_clear_ranks_are_certain_and_close_ones_are_not() -> None:
    values = (0.9, 0.52, 0.5, 0.1)
    members = [[record(str(value), value, n=200)] for value in values]
    found = bootstrap.of_ranking(draws(), ACC, members)
    assert [one.rank for one in found] == [(1, 1), (2, 3), (2, 3), (4, 4)]
    assert found[0].value == pytest.approx((0.855, 0.94), abs=0.01)
    lowest = bootstrap.of_ranking(draws(), Key("acc", False), members)
    assert [one.rank for one in lowest] == [(4, 4), (2, 3), (2, 3), (1, 1)]


def test_members_of_a_group_are_resampled() -> None:
    wide = [record("a", value) for value in (0.1, 0.5, 0.9)]
    narrow = [record("b", value) for value in (0.54, 0.55, 0.56)]
    found = bootstrap.of_ranking(draws(), ACC, [wide, narrow])
    assert found[0].value == pytest.approx((0.1, 0.9), abs=0.14) and found[0].rank == (1, 2)
    low, high = found[1].value or (0, 1)
    assert 0.54 <= low < high <= 0.56


def test_a_record_without_the_value_has_no_interval() -> None:
    found = bootstrap.of_ranking(draws(), Key("fgsm", True), [[record("a", 0.5, n=10)]])
    assert found == [bootstrap.Interval(None, None)]
    assert bootstrap.of_ranking(draws(), ACC, []) == []


def test_a_score_is_made_anew_of_metrics_that_are_drawn() -> None:
    terms = [
        {"metric": "acc", "weight": 1.0, "higher": True},
        {"metric": "cost", "weight": 1.0, "higher": False},
    ]
    some = []
    for name, acc, cost in (("a", 0.9, 3.0), ("b", 0.5, 2.0), ("c", 0.1, 1.0)):
        one = record(name, acc, n=50)
        one["metrics"] |= {"cost": cost, "score": 0.5}
        one["evals"].append({"metric": "score", "value": 0.5, "terms": terms, "missing": "refuse"})
        some.append(one)
    sample = draws(size=100)
    drawn = sample.composite(some)
    acc = np.stack([sample.number(one, "acc") for one in some])
    scaled = (acc - acc.min(0)) / (acc.max(0) - acc.min(0))
    assert drawn == pytest.approx((scaled + np.array([[0], [0.5], [1]])) / 2)
    assert drawn[1].std() > 0.01
