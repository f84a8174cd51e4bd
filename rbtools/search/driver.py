"""Counts the queries of each search run and their cost, and ends a run when its budget is used up.

An algorithm's `propose(field, draws)` is an endless generator. It yields lists of architectures that may be
evaluated in parallel, and receives their values (higher is better).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from rbtools.search.run_draws import RunDraws
from rbtools.search.search_space import SearchSpace

IDLE = 10_000  # the largest value of `patience`

# One number per objective, signed so that higher is better, or None if the evaluation failed.
Value = tuple[float, ...] | None
# Takes indices of architectures, and maps the keys of these architectures to their values.
Values = Callable[[Sequence[int]], Mapping[Hashable, Value]]
Proposals = Generator[Sequence[int], Any, None]


class Algorithm:
    """A registered search algorithm.

    If `many` is true, it supports several objectives, whose values are tuples. If `heavy` is true, the
    algorithm itself needs much computation. If `supernet` is true, it derives a cell from a supernet without
    queries.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    many: ClassVar[bool] = False
    heavy: ClassVar[bool] = False
    supernet: ClassVar[bool] = False

    def propose(self, field: SearchSpace, draws: RunDraws) -> Proposals:
        raise NotImplementedError


class Rules(NamedTuple):
    """The cost of queries. A repeat is a query whose result is already known in this run."""

    budget: int
    charge_repeats: bool = False
    objectives: int = 1
    seed: int = 0


class Trace(NamedTuple):
    """The history of one run. `log` contains the charged queries with their values, in order.

    `new` counts the charged queries that were new to the run, and `free` the free repeats. `ended` is
    "budget", "all seen" or "nothing new" (the algorithm proposed only known architectures).
    """

    number: int
    log: list[tuple[int, Value]]
    new: int
    free: int
    ended: str


def patience(size: int) -> int:
    """The number of consecutive free proposals after which a run over `size` architectures ends.

    It is a hundred per architecture, because isomorphic cells are proposed in proportion to their number, and
    a cell without isomorphic cells must still be found. For a small table, `IDLE` proposals would be too
    many.
    """
    return min(IDLE, max(100, 100 * size))


def make_run(
    algorithm: Algorithm, field: SearchSpace, rules: Rules, number: int
) -> Generator[dict[Hashable, int], Mapping[Hashable, Value], Trace]:
    """Perform one run and return its trace.

    Yields a dict that maps keys to the architectures to evaluate, and receives the values of these keys. The
    dict is empty if all proposed architectures are known.
    """
    known: dict[Hashable, Value] = {}
    charged: list[tuple[int, Hashable]] = []
    free = idle = 0
    proposals = algorithm.propose(field, RunDraws(rules.seed, number))
    proposal = next(proposals)
    while True:
        asked, new = [], {}
        for index in proposal:
            key = field.keys[index]
            repeat = key in known or key in new
            if repeat and not rules.charge_repeats:
                free += 1
            elif len(charged) == rules.budget:
                break
            else:
                charged.append((index, key))
            idle = idle + 1 if repeat else 0
            asked.append(key)
            if not repeat:
                new[key] = index
        values = yield new
        known |= {key: values[key] for key in new}
        if len(charged) == rules.budget:
            ended = "budget"
        elif rules.charge_repeats:
            ended = ""
        elif len(known) == field.size:
            ended = "all seen"
        else:
            ended = "nothing new" if idle >= patience(field.size) else ""
        if ended:
            log = [(index, known[key]) for index, key in charged]
            return Trace(number, log, len(known), free, ended)
        answers = [known[key] or (-math.inf,) * rules.objectives for key in asked]
        proposal = proposals.send(answers if algorithm.many else [value for (value,) in answers])


def search(
    algorithm: Algorithm, field: SearchSpace, values: Values, rules: Rules, runs: Sequence[int]
) -> list[Trace]:
    """Run the algorithm once for each run number. All runs advance together, one step at a time.

    If several runs need an architecture, it is evaluated once and charged to each of them. The random numbers
    of a run depend only on (seed, run number), so runs do not depend on each other.
    """
    active = {number: make_run(algorithm, field, rules, number) for number in runs}
    asked = {number: next(run) for number, run in active.items()}
    traces: dict[int, Trace] = {}
    while asked:
        needed = {key: index for new in asked.values() for key, index in new.items()}
        results = values(list(needed.values())) if needed else {}
        for number in list(asked):
            try:
                asked[number] = active[number].send(results)
            except StopIteration as end:
                traces[number] = end.value
                del asked[number]
    return [traces[number] for number in runs]
