"""A table of results by architecture, for a search to query and for a report to look up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from rbtools.errors import RbError, UsageError, shown
from rbtools.records import expr, parse_again
from rbtools.search.driver import Value
from rbtools.search.objective import SearchObjective
from rbtools.search.search_space import CellSpace, ListedSpace, SearchSpace
from rbtools.spaces import nasbench201

Record = Mapping[str, Any]


class TableEntry:
    """All records of one architecture (or of a class of isomorphic ones), combined."""

    __slots__ = ("index", "metrics", "records", "text", "values")

    def __init__(self, text: bytes, index: int | None) -> None:
        self.text, self.index = text, index
        self.records = 0
        self.metrics: dict[str, float] = {}
        self.values: dict[str, float] = {}

    def record(self) -> dict[str, Any]:
        """Its record; if several were averaged, the first one with the means as its metrics."""
        record = parse_again(self.text)
        if self.records > 1:
            record = {
                key: value for key, value in record.items() if key not in ("checkpoint", "evals", "checksums")
            }
            record["metrics"] = dict(self.metrics)
        return record


class Duplicates(NamedTuple):
    """How many architectures have several records, how many records that makes, and their seeds."""

    architectures: int
    records: int
    seeds: list[int]


class ResultTable:
    """Results by architecture.

    Several records of one architecture are averaged, metric by metric. With `share`, isomorphic cells are one
    architecture. `lacking` counts records without a value of the objective.
    """

    def __init__(self, objectives: Sequence[SearchObjective] = (), *, share: bool = True) -> None:
        self.objectives, self.share = tuple(objectives), share
        self.results: dict[Hashable, TableEntry] = {}
        self.lacking = 0
        self._counts: dict[Hashable, Counter[str]] = {}
        self._kinds: Counter[tuple[Any, ...]] = Counter()
        self._space: str | None = None
        self._missing: tuple[RbError, Record] | None = None
        self._names: dict[str, None] = {}
        self._seeds: dict[Hashable, set[int]] = {}

    def add(self, record: Record, text: bytes) -> None:
        """Add a record. Raises RbError for an invalid architecture, or one of another space."""
        arch = record["arch"]
        kind = _kind(record)
        key, index = self._key(arch)
        self._kinds[kind] += 1
        result = self.results.get(key)
        if result is None:
            result = self.results[key] = TableEntry(text, index)
            self._counts[key] = Counter()
        result.records += 1
        train = record.get("train") or {}
        if isinstance(train.get("seed"), int):
            self._seeds.setdefault(key, set()).add(train["seed"])
        count = self._counts[key]
        self._names.update(dict.fromkeys(record.get("metrics") or ()))
        for name, value in (record.get("metrics") or {}).items():
            if value is not None:
                _average(result.metrics, count, name, value)
        for objective in self.objectives:
            try:
                value = objective.of(record)
            except RbError as wrong:
                value = None
                if self._missing is None:
                    self._missing = (wrong, record)
            self.lacking += value is None
            if value is not None:
                _average(result.values, count, f"objective {objective.text}", value, objective.text)

    def _key(self, arch: Record) -> tuple[Hashable, int | None]:
        space = arch.get("space")
        if not isinstance(space, str | None):
            raise RbError(
                f"has an architecture of the space {shown(repr(space))}. Expected a name such as nasbench201."
            )
        if self._space is None:
            self._space = space
        if space != self._space:
            raise RbError(
                f"has an architecture of the space {space}, and those before it are of {self._space}. A"
                " search needs one space: choose with --where \"arch.space == '...'\"."
            )
        if space != nasbench201.NASBench201.name:
            if not isinstance(arch.get("name"), str):
                raise RbError("has an architecture without a name. Expected a name, such as resnet18.")
            return arch["name"], None
        index = nasbench201.index_by_ops()[nasbench201.ops_of(arch)]
        return (nasbench201.classes()[index] if self.share else index), index

    def check(self) -> None:
        """Raise UsageError if the table cannot be searched: no objective, or results of several kinds."""
        if not self.results:
            return
        if len(self._kinds) > 1:
            columns = list(zip(_KIND, zip(*self._kinds, strict=True), strict=True))
            differing = [name for name, values in columns if len(set(values)) > 1]
            most = dict(zip(_KIND, self._kinds.most_common(1)[0][0], strict=True))
            wanted = [f"{name} == {most[name]!r}" for name in differing if most[name] is not None]
            where = f' with --where "{" and ".join(wanted)}"' if wanted else ", with --where"
            raise UsageError(
                "The table has results of several kinds, which a search cannot mix:"
                f" {'; '.join(_counted(self._kinds, name) for name in differing)}. Choose one{where}."
            )
        for objective in self.objectives:
            if any(objective.text in result.values for result in self.results.values()):
                continue
            if self._missing is None:
                raise UsageError(f"--objective {objective.text}: no record has a number there.")
            wrong, record = self._missing
            if isinstance(wrong, expr.MissingName):
                wrong = expr.MissingName(wrong.name, {**record, "metrics": self._names})
            raise UsageError(f"--objective: {wrong}")

    def complete(self) -> list[Hashable]:
        """The keys that have a value of every objective, in the order of the table."""
        texts = [objective.text for objective in self.objectives]
        return [key for key, entry in self.results.items() if all(text in entry.values for text in texts)]

    def field(self) -> SearchSpace:
        """The search space: the architectures that have a value of every objective."""
        keys = self.complete()
        if self._space == nasbench201.NASBench201.name:
            return CellSpace(frozenset(keys), share=self.share)
        return ListedSpace([str(key) for key in keys])

    def values(self) -> dict[Hashable, Value]:
        """Key -> its values, signed so that more is better."""
        return {
            key: tuple(
                objective.upward(self.results[key].values[objective.text]) for objective in self.objectives
            )
            for key in self.complete()
        }

    def key(self, index: int, field: SearchSpace) -> Hashable:
        """The key in this table of one of a search space's architectures."""
        if isinstance(field, CellSpace):
            return nasbench201.classes()[index] if self.share else index
        return field.key(index)

    def metrics(self) -> list[str]:
        """All metrics, in order of first occurrence."""
        return list(self._names)

    def duplicates(self) -> Duplicates:
        """Counts of the records that were averaged."""
        several = [key for key, entry in self.results.items() if entry.records > 1]
        seeds = set().union(*(self._seeds.get(key, ()) for key in several))
        return Duplicates(len(several), sum(self.results[key].records for key in several), sorted(seeds))


def _average(
    means: dict[str, float], count: Counter[str], counted: str, value: float, name: str | None = None
) -> None:
    """Add a value to a running mean; a single value stays exactly the same."""
    name = counted if name is None else name
    count[counted] += 1
    before = means.get(name, 0.0)
    means[name] = value if count[counted] == 1 else before + (value - before) / count[counted]


def _kind(record: Record) -> tuple[Any, ...]:
    """The settings that averaged records must share: data, training, size.

    Raises RbError if one of these is a list or an object.
    """
    arch, train = record["arch"], record.get("train") or {}
    sizes = (arch.get("channels"), arch.get("cells"))
    kind = (record.get("dataset"), train.get("method"), train.get("epochs"), *sizes)
    for name, value in zip(_KIND, kind, strict=True):
        if isinstance(value, list | dict):
            raise RbError(f"has the {name} {shown(repr(value))}. Expected a name or a number.")
    return kind


_KIND = ("dataset", "train.method", "train.epochs", "arch.channels", "arch.cells")


def _counted(kinds: Counter[tuple[Any, ...]], name: str) -> str:
    """The values of a field and their counts: "dataset is cifar10 (27 records), svhn (27 records)"."""
    counts: Counter[Any] = Counter()
    for kind, number in kinds.items():
        counts[kind[_KIND.index(name)]] += number
    return f"{name} is " + ", ".join(
        f"{value} ({number} record{'s' * (number != 1)})" for value, number in counts.most_common(8)
    )
