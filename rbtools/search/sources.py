"""Where the value of an architecture comes from."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

from rbtools.search.driver import Value
from rbtools.search.field import Field
from rbtools.search.table import Table


class Source(Protocol):
    """Gives values of architectures, and at the end the record of one."""

    field: Field

    def __call__(self, indices: Sequence[int]) -> Mapping[Hashable, Value]:
        """The values of these architectures, by key."""

    def record(self, index: int) -> dict[str, Any]:
        """The record of an architecture that was asked for."""


class Looked:
    """Values from a table. `known` has all of them, so that optimum and gap can be told."""

    def __init__(self, table: Table) -> None:
        self.table, self.field, self.known = table, table.field(), table.values()

    def __call__(self, indices: Sequence[int]) -> Mapping[Hashable, Value]:
        keys = map(self.field.key, indices)
        return {key: self.known[key] for key in keys}

    def record(self, index: int) -> dict[str, Any]:
        return self.table.results[self.field.key(index)].record()
