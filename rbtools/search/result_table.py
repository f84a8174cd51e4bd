"""A table of results by architecture, for the queries and for the report of a search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, NoReturn

from rbtools.cli.sink import counted
from rbtools.errors import RbError, UsageError, shown
from rbtools.records import expr, parse_again
from rbtools.records.results import at
from rbtools.search.objective import SearchObjective
from rbtools.search.search_space import CellSpace, SearchSpace
from rbtools.spaces import nasbench201

Record = Mapping[str, Any]
# Averaged records must have the same values of these fields.
_KIND = ("dataset", "train.method", "train.epochs", "arch.channels", "arch.cells")


@dataclass
class TableEntry:
    """All records of one architecture or of one class of isomorphic architectures.

    `text` is the line of the first record. `reached` contains the values of each objective, and `samples` the
    metrics of each record.
    """

    text: bytes
    reached: list[list[float]]
    seeds: set[int] = field(default_factory=set)
    samples: list[Mapping[str, float | None]] = field(default_factory=list)

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The mean of each metric, which must be read only after all records are added."""
        columns: dict[str, list[float]] = {}
        for name, value in chain.from_iterable(sample.items() for sample in self.samples):
            if value is not None:
                columns.setdefault(name, []).append(value)
        return {name: _mean(values) for name, values in columns.items()}

    def record(self) -> dict[str, Any]:
        """Returns the record, or, for several records, the first one with the means as its metrics."""
        record = parse_again(self.text)
        if len(self.samples) == 1:
            return record
        of_one = ("checkpoint", "evals", "checksums")
        kept = {key: value for key, value in record.items() if key not in of_one}
        return kept | {"metrics": dict(self.metrics)}


def _mean(values: Sequence[float]) -> float:
    """The mean of a single value is exactly this value."""
    mean = values[0]
    for count, value in enumerate(values[1:], start=2):
        mean += (value - mean) / count
    return mean


class ResultTable:
    """A table of results by architecture. Call `add`, then `check`, and then read the results.

    If an architecture has several records, each metric is averaged. If `share` is true, isomorphic cells
    count as one architecture. `names` contains all metrics. `lacking` counts the missing values of
    objectives.
    """

    def __init__(self, objectives: Sequence[SearchObjective] = (), *, share: bool = True) -> None:
        self.objectives, self.share = tuple(objectives), share
        self.results: dict[Hashable, TableEntry] = {}
        self.names: dict[str, None] = {}
        self.lacking = 0
        self._kinds: Counter[tuple[Any, ...]] = Counter()
        self._space: str | None = None
        self._missing: tuple[RbError, Record] | None = None

    def add(self, record: Record, text: bytes) -> None:
        """Raises RbError if the record's architecture is invalid or belongs to another space."""
        kind = _kind(record)
        key = self._key(record["arch"])
        self._kinds[kind] += 1
        entry = self.results.setdefault(key, TableEntry(text, [[] for _ in self.objectives]))
        seed = at(record, ("train", "seed"))
        if isinstance(seed, int):
            entry.seeds.add(seed)
        metrics = record.get("metrics") or {}
        self.names |= dict.fromkeys(metrics)
        entry.samples.append(metrics)
        for objective, reached in zip(self.objectives, entry.reached, strict=True):
            try:
                value = objective.of(record)
            except RbError as wrong:
                value = None
                self._missing = self._missing or (wrong, record)
            self.lacking += value is None
            reached += [] if value is None else [value]

    def _key(self, arch: Record) -> Hashable:
        space = arch.get("space")
        if not isinstance(space, str | None):
            raise RbError(
                f"has an architecture of the space {shown(repr(space))}. Expected a name such as nasbench201."
            )
        if self._space is None:
            self._space = space
        if space != self._space:
            raise RbError(
                f"has an architecture from the space {space}, but earlier ones are from {self._space}. A"
                " search needs one space. Choose it with --where \"arch.space == '...'\"."
            )
        if space == nasbench201.NASBench201.name:
            return self._cell(nasbench201.index_by_ops()[nasbench201.ops_of(arch)])
        name = arch.get("name")
        if not isinstance(name, str):
            raise RbError("has an architecture without a name. Expected a name, such as resnet18.")
        return name

    def _cell(self, index: int) -> int:
        return nasbench201.classes()[index] if self.share else index

    def check(self) -> None:
        """Raise UsageError if an objective has no values, or if the results are of several kinds."""
        if len(self._kinds) > 1:
            self._refuse_kinds()
        for place, objective in enumerate(self.objectives):
            if not self.results or any(entry.reached[place] for entry in self.results.values()):
                continue
            if self._missing is None:
                raise UsageError(f"--objective: no record has a number for {objective.text}.")
            wrong, record = self._missing
            if isinstance(wrong, expr.MissingName):
                wrong = expr.MissingName(wrong.name, {**record, "metrics": self.names})
            raise UsageError(f"--objective: {wrong}")
        if self.results and not self.known:
            texts = ", ".join(objective.text for objective in self.objectives)
            raise UsageError(f"--objective: no architecture has values for all of {texts}.")

    def _refuse_kinds(self) -> NoReturn:
        ((most, _),) = self._kinds.most_common(1)
        differing, wanted = [], []
        for place, name in enumerate(_KIND):
            counts: Counter[Any] = Counter()
            for kind, number in self._kinds.items():
                counts[kind[place]] += number
            if len(counts) > 1:
                values = [f"{value} ({counted(number, 'record')})" for value, number in counts.most_common(8)]
                differing.append(f"{name} is {', '.join(values)}")
                wanted += [] if most[place] is None else [f"{name} == {most[place]!r}"]
        where = f' with --where "{" and ".join(wanted)}"' if wanted else ", with --where"
        raise UsageError(
            "The table has results of several kinds, which a search cannot mix:"
            f" {'; '.join(differing)}. Choose one{where}."
        )

    def restrict(self, given: ResultTable) -> None:
        """Keep only the architectures of another table. Raises UsageError if none remain."""
        self.results = {key: entry for key, entry in self.results.items() if key in given.results}
        vars(self).pop("known", None)
        if not self.known:
            raise UsageError(
                f"The table has no values for the {counted(len(given.results), 'architecture')} on standard"
                " input. Evaluate them, or leave out the pipe to search the complete table."
            )

    @cached_property
    def known(self) -> dict[Hashable, tuple[float, ...]]:
        """Maps keys to values, higher is better, for architectures with a value of every objective."""
        return {
            key: tuple(
                objective.upward(_mean(values))
                for objective, values in zip(self.objectives, entry.reached, strict=True)
            )
            for key, entry in self.results.items()
            if all(entry.reached)
        }

    @cached_property
    def field(self) -> SearchSpace:
        if self._space == nasbench201.NASBench201.name:
            return CellSpace(self.known, share=self.share)
        return SearchSpace([str(key) for key in self.known])

    def record(self, index: int) -> dict[str, Any]:
        return self.results[self.field.keys[index]].record()

    def key(self, index: int, field: SearchSpace) -> Hashable:
        """Returns the key in this table of an architecture of any search space."""
        return self._cell(index) if isinstance(field, CellSpace) else field.keys[index]


def _kind(record: Record) -> tuple[Any, ...]:
    kind = tuple(at(record, name.split(".")) for name in _KIND)
    for name, value in zip(_KIND, kind, strict=True):
        if isinstance(value, list | dict):
            raise RbError(f"has the {name} {shown(repr(value))}. Expected a name or a number.")
    return kind
