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
    """Returns after how many consecutive free proposals a run over `size` architectures ends.

    The number is a hundred for each architecture, because a class of isomorphic architectures is proposed in
    proportion to its size, and a class with one member must still be found. With a fixed limit, a hundred
    runs over a table of ten architectures would make a million useless proposals.
    """
    return min(IDLE, max(100, 100 * size))


class SearchRun:
    """The state of one run."""

    def __init__(self, algorithm: Algorithm, field: SearchSpace, rules: Rules, number: int) -> None:
        self.number, self.field, self.rules, self.many = number, field, rules, algorithm.many
        self.known: dict[Hashable, Value] = {}
        self.charged: list[tuple[int, Hashable]] = []
        self.free = self._idle = 0
        self.ended = ""
        self._asked: list[Hashable] = []
        self._proposals = algorithm.propose(field, RunDraws(rules.seed, number))
        self.pending = next(self._proposals)

    def charge(self) -> dict[Hashable, int]:
        """Charge the architectures of the pending proposal to the run, as far as the budget allows. Returns a
        dict that maps keys to the architectures to evaluate."""
        self._asked, new = [], {}
        for index in self.pending:
            key = self.field.key(index)
            repeat = key in self.known or key in new
            if repeat and not self.rules.charge_repeats:
                self.free += 1
            elif len(self.charged) == self.rules.budget:
                break
            else:
                self.charged.append((index, key))
            self._idle = self._idle + 1 if repeat else 0
            self._asked.append(key)
            if not repeat:
                new[key] = index
        return new

    def answer(self, values: Mapping[Hashable, Value]) -> None:
        """Send the values of the charged proposal to the algorithm. The run ends if the budget is spent."""
        self.known |= {key: values[key] for key in self._asked if key not in self.known}
        if len(self.charged) == self.rules.budget:
            self.ended = "budget"
        elif not self.rules.charge_repeats:
            if len(self.known) == self.field.size:
                self.ended = "all seen"
            elif self._idle >= patience(self.field.size):
                self.ended = "nothing new"
        if self.ended:
            self._proposals.close()
            return
        answers = [self.known[key] or (-math.inf,) * self.rules.objectives for key in self._asked]
        self.pending = self._proposals.send(answers if self.many else [value for (value,) in answers])

    def trace(self) -> Trace:
        log = [(index, self.known[key]) for index, key in self.charged]
        return Trace(self.number, log, len(self.known), self.free, self.ended)


def search(
    algorithm: Algorithm, field: SearchSpace, values: Values, rules: Rules, runs: Sequence[int]
) -> list[Trace]:
    """Run the algorithm once for each run number. All runs advance together, one step at a time.

    If several runs need an architecture, it is evaluated once and charged to each of these runs. Runs do not
    depend on each other, because the random numbers of a run depend only on (seed, run number).
    """
    under_way = [SearchRun(algorithm, field, rules, number) for number in runs]
    while active := [run for run in under_way if not run.ended]:
        needed: dict[Hashable, int] = {}
        for run in active:
            needed |= run.charge()
        results = values(list(needed.values())) if needed else {}
        for run in active:
            run.answer(results)
    return [run.trace() for run in under_way]
