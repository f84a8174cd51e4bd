"""The exact cost of queries, and the algorithms on tables whose optimum and difficulty are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from scipy.stats import mannwhitneyu

from rbtools.search import SEARCHES, front
from rbtools.search.driver import Algorithm, Proposals, Rules, Trace, search
from rbtools.search.result_table import ResultTable
from rbtools.search.run_draws import RunDraws
from rbtools.search.search_space import CellSpace, SearchSpace
from rbtools.spaces import nasbench201
from tests.search.landscapes import Counting, slope, table_of

COSTLY = [name for name in SEARCHES if not SEARCHES.load(name).supernet]


@dataclasses.dataclass(frozen=True)
class Scripted(Algorithm):
    """Proposes given architectures repeatedly, and records the answers."""

    batches: Sequence[Sequence[int]]
    heard: list[Any] = dataclasses.field(default_factory=list)

    def propose(self, field: SearchSpace, draws: RunDraws) -> Proposals:
        while True:
            for batch in self.batches:
                self.heard.append((yield list(batch)))


def run(algorithm: Any, values: Any, *, budget: int, charge: bool = False, runs: int = 1) -> list[Trace]:
    rules = Rules(budget, charge_repeats=charge)
    return search(algorithm, values.field, values, rules, range(runs))


def test_a_known_architecture_is_not_charged_again() -> None:
    values = Counting(slope)
    (trace,) = run(Scripted([[1, 2], [2, 1, 3], [4]]), values, budget=4)
    assert [index for index, _ in trace.log] == [1, 2, 3, 4]
    assert (trace.new, trace.free, trace.ended) == (4, 2, "budget")
    assert values.asked == {1: 1, 2: 1, 3: 1, 4: 1}


def test_isomorphic_architectures_are_one_query_where_they_share_a_result() -> None:
    shared, apart = Counting(slope, CellSpace()), Counting(slope)
    assert nasbench201.classes()[1832] == nasbench201.classes()[309]
    (one,) = run(Scripted([[1832], [309], [0]]), shared, budget=2)
    (two,) = run(Scripted([[1832], [309], [0]]), apart, budget=2)
    assert [index for index, _ in one.log] == [1832, 0] and one.free == 1
    assert [index for index, _ in two.log] == [1832, 309]
    assert one.log[0][1] == (slope(309),)


def test_a_failed_evaluation_is_charged_and_worst() -> None:
    script = Scripted([[1, 2]])
    values = {1: None, 2: (1.0,)}
    (trace,) = search(script, CellSpace(share=False), lambda _: values, Rules(3, charge_repeats=True), [0])
    assert script.heard == [[float("-inf"), 1.0]]
    assert trace.log == [(1, None), (2, (1.0,)), (1, None)]


@pytest.mark.parametrize("name", COSTLY)
@pytest.mark.parametrize("charge", [False, True])
def test_every_algorithm_spends_exactly_its_budget(name: str, charge: bool) -> None:
    values = Counting(slope, CellSpace())
    (trace,) = run(SEARCHES.build(name), values, budget=37, charge=charge)
    keys = [values.field.key(index) for index, _ in trace.log]
    assert len(keys) == 37
    assert trace.new == len(set(keys)) == sum(values.asked.values()) == len(values.asked)
    assert charge or trace.new == 37


@pytest.mark.parametrize("name", COSTLY)
def test_a_run_depends_on_its_seed_and_number_alone(name: str) -> None:
    def log(numbers: Sequence[int], seed: int = 0) -> list[Any]:
        values = Counting(slope, CellSpace())
        traces = search(SEARCHES.build(name), values.field, values, Rules(25, seed=seed), numbers)
        return [trace.log for trace in traces]

    together = log([0, 1, 2])
    assert log([2, 0]) == [together[2], together[0]]
    assert together[0] != together[1] and log([0], seed=1) != [together[0]]


def test_local_search_that_takes_the_first_better_one_moves_at_once() -> None:
    (trace,) = run(SEARCHES.build("local", starts=1, move="first"), Counting(slope), budget=40)
    here = trace.log[0][0]
    for index, value in trace.log[1:]:
        assert index in nasbench201.neighbours(here)
        if value is not None and value[0] > slope(here):
            here = index
    assert slope(here) > slope(trace.log[0][0])


def test_evolution_drops_the_oldest_member() -> None:
    values = Counting(slope)
    algorithm = SEARCHES.build("evolution", population=3, sample=1)
    (trace,) = run(algorithm, values, budget=60, charge=True)
    order = [index for index, _ in trace.log]
    only_parents = set()
    for place in range(3, 60):
        ages = [age for age in (1, 2, 3) if order[place] in nasbench201.neighbours(order[place - age])]
        assert ages
        only_parents |= set(ages) if len(ages) == 1 else set()
    assert only_parents == {1, 2, 3}  # all three of the population have children, not the last one alone


def best_of_runs(name: str, table: ResultTable, budget: int, runs: int) -> list[float]:
    """The best value that each run finds; of two objectives the hypervolume that it covers."""
    rules = Rules(budget, objectives=len(next(iter(table.known.values()))), seed=3)
    traces = search(SEARCHES.build(name), table.field, lambda _: table.known, rules, range(runs))
    low, high = (tuple(map(end, zip(*table.known.values(), strict=True))) for end in (min, max))
    return [
        front.hypervolume(front.scaled([value for _, value in trace.log if value], low, high))
        for trace in traces
    ]


def price(index: int) -> float:
    """The number of operations that are not none: what is worth much costs much."""
    return float(sum(op > 0 for op in nasbench201.cells()[index]))


@pytest.mark.parametrize(
    ("name", "objective", "budget", "runs", "most"),
    [
        ("local", "worth", 100, 40, 1e-6),
        ("evolution", "worth", 100, 40, 1e-6),
        ("bananas", "worth", 80, 8, 1e-3),
        ("nsga2", "worth,price:lower", 250, 20, 1e-4),
    ],
)
@pytest.mark.slow
def test_where_there_is_a_slope_a_search_beats_random_at_equal_budget(
    name: str, objective: str, budget: int, runs: int, most: float
) -> None:
    """By the test of Mann and Whitney; measured: p = 3e-13, 1e-13, 3e-4 and 1e-7."""
    table = table_of(objective, worth=slope, price=price)
    random, other = (best_of_runs(one, table, budget, runs) for one in ("random", name))
    assert float(mannwhitneyu(random, other, alternative="less").pvalue) < most


def test_local_search_walks_up_the_slope_to_the_optimum() -> None:
    table = table_of("worth", worth=slope)
    assert best_of_runs("local", table, 400, runs=10) == [1.0] * 10
