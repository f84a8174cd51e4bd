"""The architectures that a search may query, which have a result, and their neighbours."""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence
from functools import cached_property
from typing import Any, Protocol

from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.search.run_draws import RunDraws
from rbtools.spaces import nasbench201


class SearchSpace(Protocol):
    """Architectures by number. Those with one `key` share a result; only available ones are returned."""

    size: int
    """How many different keys there are."""
    of_space: int
    """How many keys there would be if none were missing."""

    def sample(self, draws: RunDraws) -> int:
        """A uniformly random architecture."""

    def neighbours(self, index: int) -> list[int]:
        """The architectures one small change away."""

    def mutate(self, index: int, draws: RunDraws) -> int:
        """A random neighbour; if there is none, any architecture."""

    def key(self, index: int) -> Hashable:
        """The key of its result."""

    def ops(self, index: int) -> tuple[int, ...]:
        """The operations on its edges."""

    def name(self, index: int) -> str:
        """Its name in messages."""


class CellSpace:
    """The cells of NAS-Bench-201, by published index.

    `there` has the keys that may be queried (None: all). With `share` isomorphic cells have one key, their
    smallest index; without it each has its own.
    """

    def __init__(self, there: Container[Hashable] | None = None, *, share: bool = True) -> None:
        self.keys = nasbench201.classes() if share else tuple(range(nasbench201.SIZE))
        every = range(nasbench201.SIZE)
        self.indices = [i for i in every if there is None or self.keys[i] in there]
        self.size = len({self.keys[index] for index in self.indices})
        self.of_space = len(set(self.keys))
        self._there = frozenset(self.indices)
        self._known: dict[int, list[int]] = {}
        self._nearest: dict[tuple[int, ...], int] = {}

    def sample(self, draws: RunDraws) -> int:
        return draws.choice(self.indices)

    def neighbours(self, index: int) -> list[int]:
        if index not in self._known:  # cached: runs query the same good cells repeatedly
            self._known[index] = [other for other in nasbench201.neighbours(index) if other in self._there]
        return self._known[index]

    def mutate(self, index: int, draws: RunDraws) -> int:
        near = self.neighbours(index)
        return draws.choice(near) if near else self.sample(draws)

    def key(self, index: int) -> Hashable:
        return self.keys[index]

    def ops(self, index: int) -> tuple[int, ...]:
        return nasbench201.ops_of({"index": index})

    def name(self, index: int) -> str:
        return f"nb201-{index}"

    def nearest(self, cell: tuple[int, ...]) -> int:
        """The index of this cell, or of the first one that differs on the fewest edges."""
        if cell in self.numbers:
            return self.numbers[cell]
        if cell not in self._nearest:  # cached: runs over few architectures repeat their queries
            self._nearest[cell] = self.indices[int((self._edges != cell).sum(axis=1).argmin())]
        return self._nearest[cell]

    @cached_property
    def _edges(self) -> Any:
        """(architectures, edges): the operations of the available architectures."""
        return np.array([self.ops(index) for index in self.indices], dtype=np.int8)

    @cached_property
    def numbers(self) -> dict[tuple[int, ...], int]:
        """Cell -> index, of the available architectures."""
        return {self.ops(index): index for index in self.indices}


class ListedSpace:
    """Architectures of any other space: a plain list without neighbours."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.indices = list(range(len(self.names)))
        self.size = self.of_space = len(self.names)

    def sample(self, draws: RunDraws) -> int:
        return draws.below(self.size)

    def neighbours(self, index: int) -> list[int]:
        raise RbError(
            f"{self.names[index]} has no neighbours: they are defined in the space nasbench201. Use rb-search"
            " random, which takes any list of architectures."
        )

    def mutate(self, index: int, draws: RunDraws) -> int:
        return draws.choice(self.neighbours(index))

    def key(self, index: int) -> Hashable:
        return self.names[index]

    def ops(self, index: int) -> tuple[int, ...]:
        raise RbError(
            f"{self.names[index]} has no operations on edges: those are of the space nasbench201. Use"
            " rb-search random, which takes any list of architectures."
        )

    def name(self, index: int) -> str:
        return self.names[index]
