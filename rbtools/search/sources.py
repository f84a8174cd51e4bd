"""Sources of the values of architectures."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

from rbtools.errors import RbError, UsageError
from rbtools.records import SCHEMA, expr
from rbtools.search.driver import Value
from rbtools.search.objective import SearchObjective
from rbtools.search.result_table import ResultTable
from rbtools.search.search_space import CellSpace, SearchSpace
from rbtools.spaces import Space

Work = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
"""Takes records, and returns them in order with their results or with an `error`."""


class ValueSource(Protocol):
    """Gives the values of architectures, and their records."""

    @property
    def field(self) -> SearchSpace:
        """The search space."""

    def __call__(self, indices: Sequence[int]) -> Mapping[Hashable, Value]:
        """The values of these architectures, by key."""

    def record(self, index: int) -> dict[str, Any]:
        """The record of a queried architecture."""


class TableSource:
    """Values from a table. `known` has all of them, for the optimum and the gap."""

    def __init__(self, table: ResultTable) -> None:
        self.table, self.field, self.known = table, table.field(), table.values()

    def __call__(self, indices: Sequence[int]) -> Mapping[Hashable, Value]:
        return {key: self.known[key] for key in map(self.field.key, indices)}

    def record(self, index: int) -> dict[str, Any]:
        return self.table.results[self.field.key(index)].record()


class Live:
    """Values that are computed when they are queried, by putting records through `work`.

    Isomorphic architectures share a result, that of their representative. A value is computed once for all
    runs, but charged to each.
    """

    def __init__(
        self, objectives: Sequence[SearchObjective], work: Work, space: Space, *, share: bool = True
    ) -> None:
        self.objectives, self.work, self.space = tuple(objectives), work, space
        self.field = CellSpace(share=share)
        self.records: dict[Hashable, dict[str, Any]] = {}
        self.failed: dict[int, str] = {}

    def __call__(self, indices: Sequence[int]) -> Mapping[Hashable, Value]:
        keys = [self.field.keys[index] for index in indices]
        new = [key for key in dict.fromkeys(keys) if key not in self.records]
        requests = [{"schema": SCHEMA, "arch": self.space.arch(key)} for key in new]
        for key, record in zip(new, self.work(requests) if requests else [], strict=True):
            self.records[key] = record
            if "error" in record:
                self.failed[key] = str(record["error"].get("message", "no reason given"))
        return {key: self._value(key) for key in keys}

    def _value(self, key: int) -> Value:
        if key in self.failed:
            return None
        values = []
        for objective in self.objectives:
            # A record without the objective means a wrong name, so every further record would lack it as
            # well.
            try:
                value = objective.of(self.records[key])
            except expr.MissingName as wrong:
                raise UsageError(f"--objective: {wrong}") from None
            except RbError:
                value = None
            if value is None:
                return None
            values.append(objective.upward(value))
        return tuple(values)

    def record(self, index: int) -> dict[str, Any]:
        return self.records[self.field.keys[index]]


class DerivedSource:
    """Derived architectures, which were never queried; their record is the table's, if it has one."""

    def __init__(self, table: ResultTable | None, space: Space) -> None:
        self.field = CellSpace()
        self.table, self.space = table, space

    def __call__(self, indices: Sequence[int]) -> Mapping[Hashable, Value]:
        known = {} if self.table is None else self.table.values()
        return {
            index: known.get(self.table.key(index, self.field)) if self.table else None for index in indices
        }

    def record(self, index: int) -> dict[str, Any]:
        result = None if self.table is None else self.table.results.get(self.table.key(index, self.field))
        if result is not None:
            return result.record()
        return {"schema": SCHEMA, "arch": self.space.arch(index)}
