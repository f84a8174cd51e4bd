"""The random numbers of one search run, which depend only on (seed, run)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


class RunDraws:
    """All numbers come from `random()`, the only method whose sequence Python guarantees."""

    def __init__(self, seed: int, run: int) -> None:
        self.uniform = Random(f"rb-search {seed} {run}").random  # returns a number in [0, 1)

    def below(self, count: int) -> int:
        """Returns an integer from 0 to count - 1."""
        return int(self.uniform() * count)

    def choice(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Returns the items in random order (Fisher and Yates)."""
        order = list(items)
        for last in range(len(order) - 1, 0, -1):
            other = self.below(last + 1)
            order[last], order[other] = order[other], order[last]
        return order

    def normal(self) -> float:
        """Returns a number from the standard normal distribution (Box and Muller)."""
        radius = math.sqrt(-2 * math.log(1 - self.uniform()))
        return radius * math.cos(2 * math.pi * self.uniform())
