"""Searches: the exact cost of queries, tables whose optimum is known, and the parts of the algorithms."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from operator import ge
from typing import Any

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from rbtools.scoring.rank_order import Directions
from rbtools.search import SEARCHES, bananas, front
from rbtools.search.bananas import WIDTH, Bananas, features
from rbtools.search.driver import Algorithm, Proposals, Rules, Trace, search
from rbtools.search.objective import objectives
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
    keys = [values.field.keys[index] for index, _ in trace.log]
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
        ("nsga2", "worth,price", 250, 20, 1e-4),
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


def test_a_cell_has_a_feature_for_each_sequence_of_operations_along_its_paths() -> None:
    assert WIDTH == 155
    assert features((0, 0, 0, 0, 0, 0)) == [0, 5, 30]
    # 0>3 alone; 0>1>3 and 0>2>3, first edge least significant; 0>1>2>3.
    assert features((1, 2, 3, 4, 0, 1)) == sorted([4, 5 + 1 + 0 * 5, 5 + 2 + 1 * 5, 30 + 1 + 3 * 5 + 1 * 25])
    cells = list(itertools.product(range(5), repeat=6))
    assert all(0 <= one < WIDTH for cell in cells[::97] for one in features(cell))
    assert {one for cell in cells for one in features(cell)} == set(range(WIDTH))


@pytest.mark.parametrize("loss", ["mape", "mae"])
def test_the_gradient_of_the_predictor_is_that_of_its_loss(loss: str) -> None:
    settings = Bananas(networks=1, layers=2, width=4, loss=loss)
    chance = np.random.RandomState(5)
    inputs = bananas.encoded([features(cell) for cell in chance.randint(5, size=(40, 6)).tolist()])[None]
    costs = (0.1 + chance.random_sample((1, 40))).astype(np.float32)
    networks = bananas._Networks(settings, np.random.RandomState(0))

    def value() -> float:
        off = np.abs(networks.outputs(inputs).astype(float) - costs)
        return float((off / costs if loss == "mape" else off).mean())

    before = networks.params.copy()
    networks._adam = lambda: None  # type: ignore[method-assign]
    networks.step(inputs, costs)
    slopes, steepest = networks.grads[0].copy(), np.argsort(-np.abs(networks.grads[0]))[:20]
    for place in steepest:
        ends = []
        for step in (1e-3, -1e-3):
            networks.params[:] = before
            networks.params[0, place] += step
            ends.append(value())
        assert (ends[0] - ends[1]) / 2e-3 == pytest.approx(slopes[place], rel=0.05, abs=1e-3)


def test_a_front_is_what_nothing_dominates() -> None:
    points = [(1.0, 1.0), (0.0, 3.0), (2.0, 0.0), (1.0, 0.5), (0.0, 3.0), (0.5, 1.0)]
    assert front.front(points, tuple) == points[:3]
    chance = np.random.RandomState(1)
    many = [tuple(map(float, row)) for row in chance.randint(6, size=(60, 3))]
    beaten = {one for one in many for other in many if other != one and all(map(ge, other, one))}
    assert set(front.front(many, tuple)) == {*many} - beaten


def test_the_hypervolume_is_that_of_the_boxes() -> None:
    assert front.hypervolume([(1.0, 0.5), (0.5, 1.0)]) == pytest.approx(0.75)
    assert front.hypervolume([(1.0, 1.0, 0.5), (0.5, 0.5, 1.0)]) == pytest.approx(0.5 + 0.125)
    assert front.hypervolume([(-1.0, 2.0)]) == 0 == front.hypervolume([])
    chance = np.random.RandomState(2)
    points = [tuple(map(float, row)) for row in chance.random_sample((12, 3))]
    inside = chance.random_sample((40000, 3))
    share = np.any([np.all(inside <= np.array(point), axis=1) for point in points], axis=0).mean()
    assert front.hypervolume(points) == pytest.approx(share, abs=0.01)


def test_objectives_are_cut_at_commas_outside_of_brackets() -> None:
    found = objectives(
        ["mean(acc, pgd20.8), params", "ge.acc", "acc"], Directions(lower="acc", higher="ge.acc")
    )
    assert [one.text for one in found] == ["mean(acc, pgd20.8)", "params", "ge.acc", "acc"]
    assert [one.higher for one in found] == [True, False, True, False]


def test_a_cell_that_is_not_there_is_replaced_by_the_nearest_one() -> None:
    some = range(17, nasbench201.SIZE, 211)
    field = CellSpace(set(some), share=False)
    for index in range(0, nasbench201.SIZE, 499):
        cell = nasbench201.ops_of({"index": index})
        apart = [nasbench201.edit_distance(field.ops(other), cell) for other in some]
        assert field.nearest(cell) == some[apart.index(min(apart))]


def test_draws_are_uniform_normal_and_permutations() -> None:
    draws = RunDraws(0, 0)
    counts = np.bincount([draws.below(6) for _ in range(6000)])
    assert len(counts) == 6 and counts.min() > 880 and counts.max() < 1120
    normal = np.array([draws.normal() for _ in range(4000)])
    assert abs(normal.mean()) < 0.06 and abs(normal.std() - 1) < 0.05
    firsts = np.bincount([draws.shuffled(range(4))[0] for _ in range(4000)])
    assert firsts.min() > 900 and sorted(draws.shuffled(range(9))) == list(range(9))
