from __future__ import annotations

import dataclasses
from typing import ClassVar

from rbtools.search.driver import Algorithm, Proposals
from rbtools.search.run_draws import RunDraws
from rbtools.search.search_space import SearchSpace

_AT_ONCE = 32  # architectures evaluated in parallel; the result does not depend on it


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomSearch(Algorithm):
    """Random search, which samples architectures uniformly with replacement."""

    name: ClassVar[str] = "random"
    many: ClassVar[bool] = True

    def propose(self, field: SearchSpace, draws: RunDraws) -> Proposals:
        while True:
            yield [field.sample(draws) for _ in range(_AT_ONCE)]
