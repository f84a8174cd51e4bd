"""The accounting of a search: who asked for what, what it cost, and when the budget is spent.

An algorithm's `propose(field, draws)` is a generator. It yields a list of architectures that may
be evaluated side by side, and is sent their values, more always being better; or it yields work of its
own (`Together`) that runs do side by side, and is sent what came of it. It never ends by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from rbtools.search.run_draws import RunDraws
from rbtools.search.search_space import SearchSpace

IDLE = 10_000
"""Proposals in a row that cost nothing, after which a run is taken to have nothing new; see `patience`."""

Value = tuple[float, ...] | None
"""One number an objective, turned so that more is better; None where the evaluation failed."""
Values = Callable[[Sequence[int]], Mapping[Hashable, Value]]
"""Indices -> the values of their keys."""


class BatchEvaluator(Protocol):
    """Work that several runs do at once, because that is faster than one after another."""

    @classmethod
    def all(cls, works: Sequence[Any]) -> list[Any]:
        """What comes of each of these works, which does not depend on the others."""


Proposals = Generator[Sequence[int] | BatchEvaluator, Any, None]


class Algorithm(Protocol):
    """A registered search. `many`: it takes several objectives, and is then sent tuples."""

    name: ClassVar[str]
    many: ClassVar[bool]

    def propose(self, field: SearchSpace, draws: RunDraws) -> Proposals: ...


class Rules(NamedTuple):
    """What a query costs. A repeat is one whose result this run knows."""

    budget: int
    charge_repeats: bool = False


class Trace(NamedTuple):
    """What one run did. `log` has the charged queries in order, with their values.

    `new`: how many of them were asked for the first time; `free`: repeats that cost nothing; `ended`:
    "budget", "all seen", or "nothing new" (it went on proposing what it knew).
    """

    number: int
    log: list[tuple[int, Value]]
    new: int
    free: int
    ended: str


def patience(size: int) -> int:
    """Free proposals in a row that end a run over so many architectures.

    A hundred for each: classes of isomorphic architectures are proposed as often as they have members, and
    one of a single member is still to be met. A hundred runs over a table of ten would otherwise propose a
    million times for nothing.
    """
    return min(IDLE, max(100, 100 * size))


class SearchRun:
    """One run under way."""

    def __init__(
        self, number: int, proposals: Proposals, field: SearchSpace, rules: Rules, many: bool
    ) -> None:
        self.number, self.field, self.rules, self.many = number, field, rules, many
        self.known: dict[Hashable, Value] = {}
        self.log: list[tuple[int, Value]] = []
        self.free = self._idle = 0
        self.ended = ""
        self._proposals = proposals
        self.pending: Any = next(proposals)

    def needs(self) -> list[int]:
        """What has to be evaluated for the pending proposal, within what is left of the budget."""
        left, new = self.rules.budget - len(self.log), {}
        for index in self.pending:
            key = self.field.key(index)
            repeat = key in self.known or key in new
            if repeat and not self.rules.charge_repeats:
                continue
            if not left:
                break
            left -= 1
            if not repeat:
                new[key] = index
        return list(new.values())

    def answer(self, values: Mapping[Hashable, Value], objectives: int) -> None:
        """Charge the pending proposal and send its values; the run ends where the budget does."""
        answers = []
        for index in self.pending:
            key = self.field.key(index)
            repeat = key in self.known
            costs = not repeat or self.rules.charge_repeats
            if costs and len(self.log) == self.rules.budget:
                break
            if not repeat:
                self.known[key] = values[key]
            if costs:
                self.log.append((index, self.known[key]))
            self.free += not costs
            self._idle = 0 if not repeat else self._idle + 1
            value = self.known[key] or (-math.inf,) * objectives
            answers.append(value if self.many else value[0])
        self.ended = self._why_it_ends()
        if self.ended:
            self._proposals.close()
        else:
            self.send(answers)

    def send(self, answers: Any) -> None:
        """Send what was asked for, and have the next proposal."""
        self.pending = self._proposals.send(answers)

    def _why_it_ends(self) -> str:
        if len(self.log) == self.rules.budget:
            return "budget"
        if self.rules.charge_repeats:
            return ""
        if len(self.known) == self.field.size:
            return "all seen"
        return "nothing new" if self._idle >= patience(self.field.size) else ""

    def trace(self) -> Trace:
        return Trace(self.number, self.log, len(self.known), self.free, self.ended)


def search(
    algorithm: Algorithm,
    field: SearchSpace,
    values: Values,
    rules: Rules,
    *,
    seed: int,
    runs: Sequence[int],
    objectives: int = 1,
) -> list[Trace]:
    """Run the algorithm under each of the run numbers; the runs advance side by side.

    What several of them need is asked for once, and charged to each. A run does not depend on the
    others: its random numbers are those of (seed, its number).
    """
    under_way = []
    for number in runs:
        proposals = algorithm.propose(field, RunDraws(seed, number))
        under_way.append(SearchRun(number, proposals, field, rules, algorithm.many))
    active = list(under_way)
    while active:
        working = [run for run in active if not isinstance(run.pending, list)]
        asking = [run for run in active if isinstance(run.pending, list)]
        if working:
            for run, result in zip(working, _evaluate_all([run.pending for run in working]), strict=True):
                run.send(result)
            continue
        needed = {field.key(index): index for run in asking for index in run.needs()}
        found = values(list(needed.values())) if needed else {}
        for run in asking:
            run.answer(found, objectives)
        active = [run for run in active if not run.ended]
    return [run.trace() for run in under_way]


def _evaluate_all(works: list[Any]) -> list[Any]:
    results: list[Any] = type(works[0]).all(works)
    return results
