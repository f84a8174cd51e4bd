"""The algorithms on tables whose optimum and difficulty are known."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest, mannwhitneyu

from rbtools.search import SEARCHES, front
from rbtools.search.driver import Rules, Trace, search
from rbtools.search.result_table import ResultTable
from rbtools.search.summary import found as found_by
from rbtools.spaces import nasbench201
from tests.search.landscapes import BEST, needle, slope, table_of

SLOPE, NEEDLE = table_of("acc", acc=slope), table_of("acc", acc=needle)


def searched(name: str, table: ResultTable, rules: Rules, runs: int) -> list[Trace]:
    return search(SEARCHES.build(name), table.field, lambda _: table.known, rules, range(runs))


def found(name: str, table: ResultTable, budget: int, runs: int = 40, charge: bool = False) -> list[float]:
    """The best value that each run found."""
    traces = searched(name, table, Rules(budget, charge, seed=3), runs)
    return [best.values[0] for trace in traces for best in found_by(trace)]


def worse(first: list[float], second: list[float]) -> float:
    """How likely values are to be this much lower than the second ones by chance (Mann and Whitney)."""
    return float(mannwhitneyu(first, second, alternative="less").pvalue)


@pytest.mark.parametrize(
    ("name", "budget", "runs", "most"),
    [
        ("local", 100, 40, 1e-6),
        ("evolution", 100, 40, 1e-6),
        pytest.param("bananas", 80, 8, 1e-3, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_where_there_is_a_slope_a_search_beats_random_at_equal_budget(
    name: str, budget: int, runs: int, most: float
) -> None:
    # Measured: p = 3e-13 for local search, 1e-13 for evolution, 3e-4 for BANANAS.
    assert worse(found("random", SLOPE, budget, runs), found(name, SLOPE, budget, runs)) < most


def test_local_search_walks_up_the_slope_to_the_optimum() -> None:
    (top,) = max(SLOPE.known.values())
    assert found("local", SLOPE, 400, runs=10) == [top] * 10


def test_a_needle_in_noise_is_found_no_more_often_than_by_chance() -> None:
    budget, runs = 1500, 60
    hits = sum(value == 100 for value in found("local", NEEDLE, budget, runs))
    chance = budget / 6466
    assert binomtest(hits, runs, chance).pvalue > 0.001
    assert 0 < hits < runs


@pytest.mark.slow
def test_random_search_finds_a_class_as_often_as_its_size_says() -> None:
    index = nasbench201.index_by_ops()[BEST]
    size = nasbench201.classes().count(nasbench201.classes()[index])
    budget, runs = 3000, 120
    hits = sum(value == 100 for value in found("random", NEEDLE, budget, runs, charge=True))
    assert binomtest(hits, runs, 1 - (1 - size / 15625) ** budget).pvalue > 0.001


@pytest.mark.slow
def test_nsga2_covers_more_of_the_front_than_random() -> None:
    # 20 runs of 250 queries each, on two objectives that pull against each other; measured: p = 1e-7.
    # What is worth much costs much: a price is the number of operations that are not none.
    table = table_of("worth,price:lower", worth=slope, price=price)
    assert worse(covered("random", table), covered("nsga2", table)) < 1e-4


def price(index: int) -> float:
    return float(sum(op > 0 for op in nasbench201.cells()[index]))


def covered(name: str, table: ResultTable) -> list[float]:
    """The hypervolume that each run covers."""
    traces = searched(name, table, Rules(250, objectives=2, seed=1), 20)
    low, high = (tuple(map(end, zip(*table.known.values(), strict=True))) for end in (min, max))
    return [
        front.hypervolume(front.scaled([value for _, value in trace.log if value], low, high))
        for trace in traces
    ]
