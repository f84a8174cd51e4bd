from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from typing import Any, ClassVar

from rbtools.registry import param
from rbtools.search.driver import Algorithm, Proposals
from rbtools.search.run_draws import RunDraws
from rbtools.search.search_space import SearchSpace


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalSearch(Algorithm):
    """Local search (White et al., UAI 2021): queries the best architecture's neighbours in random order.

    The search begins with the best of `starts=10` random architectures. After all neighbours are queried, the
    search moves to the best one if it is better. With `move=first`, the search moves to the first better
    neighbour. At a local optimum, the search restarts from new random architectures. Earlier results still
    count.
    """

    name: ClassVar[str] = "local"

    starts: int = param(10, "Number of random architectures at the beginning.", check="positive")
    restarts: int = param(
        1, "Number of random architectures to query after each local optimum.", check="positive"
    )
    move: str = param("best", "Move to the best or the first better neighbour.", choices=("best", "first"))

    def propose(self, field: SearchSpace, draws: RunDraws) -> Proposals:
        count = self.starts
        while True:
            starts = [field.sample(draws) for _ in range(count)]
            values = yield starts
            value, index = max(zip(values, starts, strict=True), key=lambda pair: pair[0])
            while True:
                move = yield from self._better(field, index, value, draws)
                if move is None:
                    break
                value, index = move
            count = self.restarts

    def _better(
        self, field: SearchSpace, index: int, value: float, draws: RunDraws
    ) -> Generator[Sequence[int], Any, tuple[float, int] | None]:
        """Returns the value and the index of the next architecture, or None at a local optimum."""
        near = draws.shuffled(field.neighbours(index))
        if self.move == "best":
            values = (yield near) if near else []
            best = max(zip(values, near, strict=True), key=lambda pair: pair[0], default=None)
            return best if best is not None and best[0] > value else None
        for other in near:
            (reached,) = yield [other]
            if reached > value:
                return reached, other
        return None
