"""The sources of architectures and values for a search: a table, new evaluations, or a supernet."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from rbtools.errors import RbError, UsageError
from rbtools.records import SCHEMA, expr
from rbtools.search.driver import Value
from rbtools.search.objective import SearchObjective
from rbtools.search.result_table import ResultTable
from rbtools.search.search_space import CellSpace, SearchSpace
from rbtools.spaces import Space

# Takes records, and returns them in order, each with its results or an `error`.
Work = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


class Live:
    """Values that `work` computes when they are queried, once for all runs.

    Isomorphic architectures share the result of their class representative. If a table is `given`, only its
    architectures are searched, and its records are evaluated.
    """

    known = None

    def __init__(
        self,
        objectives: Sequence[SearchObjective],
        work: Work,
        space: Space,
        *,
        share: bool = True,
        given: ResultTable | None = None,
    ) -> None:
        self.objectives, self.work, self.space, self.given = tuple(objectives), work, space, given
        self.field: SearchSpace = CellSpace(share=share) if given is None else given.field
        self.records: dict[Hashable, dict[str, Any]] = {}
        self.failed: dict[Hashable, str] = {}

    def __call__(self, indices: Sequence[int]) -> Mapping[Hashable, Value]:
        keys = [self.field.keys[index] for index in indices]
        new = [key for key in dict.fromkeys(keys) if key not in self.records]
        requests = [
            {"schema": SCHEMA, "arch": self.space.arch(key)}  # type: ignore[arg-type]
            if self.given is None
            else self.given.results[key].record()
            for key in new
        ]
        for key, record in zip(new, self.work(requests) if requests else [], strict=True):
            self.records[key] = record
            if "error" in record:
                self.failed[key] = str(record["error"].get("message", "no reason given"))
        return {key: None if key in self.failed else self._value(self.records[key]) for key in keys}

    def _value(self, record: dict[str, Any]) -> Value:
        values = []
        for objective in self.objectives:
            # If a record lacks the objective, its name is wrong, and all further records would lack it, too.
            try:
                value = objective.of(record)
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
    """Architectures that a search derived without queries. Their results may be in the table."""

    def __init__(self, table: ResultTable, space: Space) -> None:
        self.field, self.known = CellSpace(), table.known
        self.table, self.space = table, space

    def value(self, index: int) -> Value:
        """Returns the value in the table, or None if the table or the search has none."""
        return self.known.get(self.table.key(index, self.field)) if self.table.objectives else None

    def record(self, index: int) -> dict[str, Any]:
        entry = self.table.results.get(self.table.key(index, self.field))
        return {"schema": SCHEMA, "arch": self.space.arch(index)} if entry is None else entry.record()


# A search space (`field`), the values of all its architectures if they are `known`, and their records.
Source = ResultTable | Live | DerivedSource
