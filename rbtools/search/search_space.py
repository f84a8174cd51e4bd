"""The architectures with a result, which a search may query, and their neighbours."""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence
from functools import cached_property
from typing import Any

from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.search.run_draws import RunDraws
from rbtools.spaces import nasbench201


class SearchSpace:
    """A numbered list of architectures without neighbours and operations.

    Architectures with the same key in `keys` share a result. The methods return only available
    architectures (`indices`), whose number of different keys is `size`. `of_space` is this number for all
    architectures.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.keys: Sequence[Hashable] = names
        self.indices: Sequence[int] = range(len(names))
        self.size = self.of_space = len(names)

    def sample(self, draws: RunDraws) -> int:
        return draws.choice(self.indices)

    def mutate(self, index: int, draws: RunDraws) -> int:
        """Returns a random neighbour, or a random architecture if there is no neighbour."""
        near = self.neighbours(index)
        return draws.choice(near) if near else self.sample(draws)

    def name(self, index: int) -> str:
        return str(self.keys[index])

    def neighbours(self, index: int) -> list[int]:
        """Returns the architectures one small change away. Raises RbError if the space defines none."""
        raise self._lacking(index, "neighbours, which are only defined in")

    def ops(self, index: int) -> tuple[int, ...]:
        """Returns the operations on all edges. Raises RbError if the space has no edges."""
        raise self._lacking(index, "operations on edges, which only exist in")

    def _lacking(self, index: int, what: str) -> RbError:
        return RbError(
            f"{self.name(index)} has no {what} the space nasbench201. Use rb-search random, which searches"
            " any list of architectures."
        )


class CellSpace(SearchSpace):
    """The cells of NAS-Bench-201, numbered by their published indices.

    `there` contains the keys that may be queried (None: all keys). If `share` is true, the key of a cell is
    the smallest index of an isomorphic cell, and otherwise its own index.
    """

    def __init__(self, there: Container[Hashable] | None = None, *, share: bool = True) -> None:
        self.keys: Sequence[int] = nasbench201.classes() if share else range(nasbench201.SIZE)
        self.indices = [index for index, key in enumerate(self.keys) if there is None or key in there]
        self.size = len({self.keys[index] for index in self.indices})
        self.of_space = len(set(self.keys))
        self._there = frozenset(self.indices)
        self._nearest: dict[tuple[int, ...], int] = {}

    def neighbours(self, index: int) -> list[int]:
        return [other for other in nasbench201.neighbours(index) if other in self._there]

    def ops(self, index: int) -> tuple[int, ...]:
        return nasbench201.cells()[index]

    def name(self, index: int) -> str:
        return f"nb201-{index}"

    def nearest(self, cell: tuple[int, ...]) -> int:
        """Returns the index of this cell, or of the first available cell that differs on the fewest edges."""
        index = nasbench201.index_by_ops()[cell]
        if index in self._there:
            return index
        if cell not in self._nearest:  # cached: runs over few architectures repeat their queries
            self._nearest[cell] = self.indices[int((self._edges != cell).sum(axis=1).argmin())]
        return self._nearest[cell]

    @cached_property
    def _edges(self) -> Any:
        """The operations of the available architectures, with shape (architectures, edges)."""
        return np.array([self.ops(index) for index in self.indices], dtype=np.int8)
