from __future__ import annotations

import dataclasses
import itertools
from operator import itemgetter
from typing import ClassVar

from rbtools.registry import param
from rbtools.search.driver import Algorithm, Proposals
from rbtools.search.run_draws import RunDraws
from rbtools.search.search_space import SearchSpace


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegularizedEvolution(Algorithm):
    """Regularised evolution (Real et al., AAAI 2019), which removes the oldest member instead of the worst.

    In each step, `sample=10` members are chosen at random with replacement. The best chosen member produces a
    child with one changed operation. The child replaces the oldest of the `population=30` members.
    """

    name: ClassVar[str] = "evolution"

    population: int = param(30, "Size of the population, whose first members are random.", check="positive")
    sample: int = param(10, "Number of members to sample. The best one produces a child.", check="positive")

    def propose(self, field: SearchSpace, draws: RunDraws) -> Proposals:
        first = [field.sample(draws) for _ in range(self.population)]
        values = yield first
        members = list(zip(values, first, strict=True))
        for oldest in itertools.cycle(range(self.population)):
            _, parent = max((draws.choice(members) for _ in range(self.sample)), key=itemgetter(0))
            child = field.mutate(parent, draws)
            (value,) = yield [child]
            members[oldest] = (value, child)
