"""Joins result sets: the same architectures in several evaluations or on several data sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rbtools.errors import RbError, UsageError
from rbtools.lazy import np
from rbtools.records import expr
from rbtools.scoring import same_model
from rbtools.scoring.columns import Columns, unknown
from rbtools.scoring.groups import fields

Key = tuple[Any, ...]


class Numbers(NamedTuple):
    """Columns of numbers (N, M), a row for each joined record; NaN where it has none."""

    names: list[str]
    values: np.ndarray


class JoinedSets:
    """Records of one set or of several; those of several are joined by the fields `on`.

    With several sets, columns are called LABEL:METRIC. Of two records of a set with the same key (with one
    set: of one model, unless `merge` is false), the last counts; `duplicates` counts the others, `without`
    the records that lack a field of the key. `datasets` has the data sets of sets that mix several.
    """

    def __init__(self, items: Iterable[str], on: Sequence[str] = (), *, merge: bool = True) -> None:
        self.merge = merge
        self.on_names = list(on)
        self.on = fields(on)
        parts = (part for item in items for part in (item, item.rpartition(":")[2]) if part)
        self._items = dict.fromkeys(parts)
        self._sets: dict[str, Columns] = {}
        self._places: dict[str, dict[Key, int]] = {}
        self._origin: dict[str, tuple[str, str]] = {}  # (set, name in that set) of a column
        self._datasets: dict[str, dict[str, None]] = {}
        self.duplicates = self.without = 0
        self.reason: RbError | None = None

    def add(self, label: str, record: Mapping[str, Any]) -> None:
        """Add a record to the set of that label."""
        try:
            key = tuple(field(record) for field in self.on)
        except RbError as reason:
            self.without += 1
            self.reason = self.reason or reason
            return
        if label not in self._sets:
            self._sets[label], self._places[label], self._datasets[label] = Columns(self._items), {}, {}
        columns, places = self._sets[label], self._places[label]
        if not self.on:
            key = (same_model.model(record) if self.merge else columns.count,)
        self.duplicates += key in places
        places[key] = columns.count
        columns.add(record)
        if "dataset" in record:
            self._datasets[label][str(record["dataset"])] = None

    @property
    def labels(self) -> list[str]:
        """The sets, in order of first occurrence."""
        return list(self._sets)

    @property
    def datasets(self) -> list[str]:
        """The data sets of the sets that have several."""
        mixed = [some for some in self._datasets.values() if len(some) > 1]
        return list(dict.fromkeys(name for some in mixed for name in some))

    def resolve(self, items: Iterable[str]) -> list[str]:
        """The columns of these items: of all sets, or with LABEL: in front, of the sets that it matches.

        Raises UsageError for an item that no record has.
        """
        names: dict[str, None] = {}
        for item in items:
            names.update(dict.fromkeys(self._resolved(item)))
        return list(names)

    def _resolved(self, item: str) -> list[str]:
        if not self.on:
            here = {
                name: (label, name) for label, columns in self._sets.items() for name in columns.resolve(item)
            }
            self._origin |= here
            return list(here)
        label, colon, bare = item.rpartition(":")
        chosen = expr.expand(label, self._sets) if colon else self.labels
        if not chosen:
            raise UsageError(f"No result set is called '{label}'. There are: {', '.join(self._sets)}.")
        names: list[str] = []
        for other in chosen:
            try:
                here = {f"{other}:{name}": (other, name) for name in self._sets[other].resolve(bare)}
            except UsageError:  # another set may have the metric
                continue
            self._origin |= here
            names += here
        if not names:
            raise unknown(bare, dict.fromkeys(name for other in chosen for name in self._sets[other].metrics))
        return names

    def numbers(self, names: Sequence[str]) -> Numbers:
        """These columns, named as by `resolve`, joined."""
        keys = dict.fromkeys(key for places in self._places.values() for key in places)
        rows = {key: row for row, key in enumerate(keys)}
        values = np.full((len(rows), len(names)), np.nan)
        at = {
            label: np.array([[rows[key], place] for key, place in places.items()])
            for label, places in self._places.items()
        }
        for column, name in enumerate(names):
            label, metric = self._origin[name]
            column_values = np.frombuffer(self._sets[label].column(metric))
            values[at[label][:, 0], column] = column_values[at[label][:, 1]]
        return Numbers(list(names), values)
