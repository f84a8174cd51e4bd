"""The exact cost of queries, against a table that counts its look-ups."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from rbtools.search import SEARCHES
from rbtools.search.driver import IDLE, Algorithm, Proposals, Rules, Trace, patience, search
from rbtools.search.run_draws import RunDraws
from rbtools.search.search_space import CellSpace, SearchSpace
from rbtools.spaces import nasbench201
from tests.search.landscapes import Counting, slope

COSTLY = [name for name in SEARCHES if not SEARCHES.load(name).supernet]
EDGES_AND_OPS = 24


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


def test_repeats_are_charged_where_that_is_asked_for_and_still_looked_up_once() -> None:
    values = Counting(slope)
    (trace,) = run(Scripted([[1, 2], [2, 1, 3], [4]]), values, budget=4, charge=True)
    assert [index for index, _ in trace.log] == [1, 2, 2, 1]
    assert (trace.new, trace.free) == (2, 0)
    assert values.asked == {1: 1, 2: 1}


def test_a_proposal_is_cut_where_the_budget_ends() -> None:
    values, script = Counting(slope), Scripted([[5, 6, 7, 8]])
    (trace,) = run(script, values, budget=3)
    assert [index for index, _ in trace.log] == [5, 6, 7] and 8 not in values.asked
    assert script.heard == []  # the run is over before the answer


def test_isomorphic_architectures_are_one_query_where_they_share_a_result() -> None:
    shared, apart = Counting(slope, CellSpace()), Counting(slope)
    assert nasbench201.classes()[1832] == nasbench201.classes()[309]
    (one,) = run(Scripted([[1832], [309], [0]]), shared, budget=2)
    (two,) = run(Scripted([[1832], [309], [0]]), apart, budget=2)
    assert [index for index, _ in one.log] == [1832, 0] and one.free == 1
    assert [index for index, _ in two.log] == [1832, 309]
    assert one.log[0][1] == (slope(309),)


def test_answers_come_in_the_order_of_the_proposal() -> None:
    script = Scripted([[3, 1, 3, 2], [9]])
    run(script, Counting(slope), budget=4)
    assert script.heard == [[slope(3), slope(1), slope(3), slope(2)]]


def test_a_failed_evaluation_is_charged_and_worst() -> None:
    script = Scripted([[1, 2]])
    values = {1: None, 2: (1.0,)}
    (trace,) = search(script, CellSpace(share=False), lambda _: values, Rules(3, charge_repeats=True), [0])
    assert script.heard == [[float("-inf"), 1.0]]
    assert trace.log == [(1, None), (2, (1.0,)), (1, None)]


def test_a_run_ends_when_it_has_seen_all_there_is() -> None:
    values = Counting(slope, CellSpace(frozenset(range(5)), share=False))
    (trace,) = run(SEARCHES.build("random"), values, budget=1000)
    assert sorted(index for index, _ in trace.log) == [0, 1, 2, 3, 4]
    assert trace.ended == "all seen"


@pytest.mark.parametrize(("there", "limit"), [(nasbench201.SIZE, IDLE), (40, 4000)])
def test_a_run_that_proposes_nothing_new_ends_and_sooner_over_few(there: int, limit: int) -> None:
    values = Counting(slope, CellSpace(frozenset(range(there)), share=False))
    (trace,) = run(Scripted([[1, 2]]), values, budget=3)
    assert (trace.ended, trace.new) == ("nothing new", 2)
    assert limit <= trace.free < limit + 2 and patience(1) == 100


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


@pytest.mark.parametrize("name", COSTLY)
def test_architectures_that_are_missing_are_never_asked_for(name: str) -> None:
    there = frozenset(index for index in nasbench201.unique() if index % 7 == 0)
    values = Counting(slope, CellSpace(there))
    (trace,) = run(SEARCHES.build(name), values, budget=60)
    assert len(trace.log) == 60 and set(values.asked) <= there


def test_local_search_looks_at_all_neighbours_before_it_moves() -> None:
    values = Counting(slope)
    (trace,) = run(SEARCHES.build("local", starts=1), values, budget=1 + EDGES_AND_OPS)
    start, *rest = [index for index, _ in trace.log]
    assert sorted(rest) == sorted(nasbench201.neighbours(start))


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
