"""Counts the queries of each search run and their cost, and ends a run when its budget is spent.

An algorithm's `propose(field, draws)` is an endless generator. The generator yields a list of architectures
that may be evaluated in parallel, and receives their values (higher is better).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from rbtools.search.run_draws import RunDraws
from rbtools.search.search_space import SearchSpace

IDLE = 10_000
"""Most consecutive free proposals after which a run ends; see `patience`."""

Value = tuple[float, ...] | None
"""One number per objective, signed so that more is better; None if the evaluation failed."""
Values = Callable[[Sequence[int]], Mapping[Hashable, Value]]
"""Takes indices of architectures, and maps the keys of these architectures to their values."""


Proposals = Generator[Sequence[int], Any, None]


class Algorithm:
    """A registered search algorithm.

    `many` is true if the algorithm supports several objectives, whose values are tuples. `heavy` is true if
    the algorithm itself needs much computation. `supernet` is true if the algorithm derives a cell from a
    supernet and makes no queries.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    many: ClassVar[bool] = False
    heavy: ClassVar[bool] = False
    supernet: ClassVar[bool] = False

    def propose(self, field: SearchSpace, draws: RunDraws) -> Proposals:
        raise NotImplementedError


class Rules(NamedTuple):
    """The cost of queries, the number of objectives, and the seed of the runs.

    A repeat is a query whose result the run already knows.
    """

    budget: int
    charge_repeats: bool = False
    objectives: int = 1
    seed: int = 0


class Trace(NamedTuple):
    """The history of one run. `log` contains the charged queries with their values, in order.

    `new` is the number of charged queries that were new to the run. `free` is the number of free repeats.
    `ended` is "budget", "all seen" or "nothing new" (the algorithm proposed only known architectures).
    """

    number: int
    log: list[tuple[int, Value]]
    new: int
    free: int
    ended: str


def patience(size: int) -> int:
    """The number of consecutive free proposals after which a run over `size` architectures ends.

    The number is a hundred for each architecture, because a class of isomorphic architectures is proposed in
    proportion to its size, and a class with one member must still be found. With a fixed limit, a hundred
    runs over a table of ten architectures would make a million useless proposals.
    """
    return min(IDLE, max(100, 100 * size))


def make_run(
    algorithm: Algorithm, field: SearchSpace, rules: Rules, number: int
) -> Generator[dict[Hashable, int], Mapping[Hashable, Value], Trace]:
    """Make one run, and return its trace.

    Yields a dict that maps keys to the architectures to evaluate, and receives the values of these keys. The
    dict is empty if the run knows the values of all architectures that the algorithm proposed.
    """
    known: dict[Hashable, Value] = {}
    charged: list[tuple[int, Hashable]] = []
    free = idle = 0
    proposals = algorithm.propose(field, RunDraws(rules.seed, number))
    proposal = next(proposals)
    while True:
        asked, new = [], {}
        for index in proposal:
            key = field.key(index)
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

    If several runs need an architecture, it is evaluated once and charged to each of these runs. Runs do not
    depend on each other, because the random numbers of a run depend only on (seed, run number).
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
