"""Joins sets of results for the same architectures, from several evaluations or data sets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rbtools.errors import RbError, UsageError
from rbtools.lazy import np
from rbtools.records import expr
from rbtools.scoring.columns import Columns, unknown
from rbtools.scoring.correlate import floats
from rbtools.scoring.groups import Key, field

Record = Mapping[str, Any]


class JoinedSets:
    """Records of one set, or of several sets that are joined by the fields `on`.

    With `on`, columns are called LABEL:METRIC. If several records of a set have the same key, the last record
    is used, and `duplicates` counts the other records. `without` counts the records that lack a field of the
    key, and `reason` is the first error for such a record.
    """

    def __init__(self, sets: Mapping[str, Sequence[Record]], on: Sequence[str]) -> None:
        self.on = list(on)
        self.duplicates = self.without = 0
        self.reason: RbError | None = None
        look_up = [field(name) for name in on]
        self._rows: dict[str, dict[Key, Record]] = {}
        for label, records in sets.items():
            rows: dict[Key, Record] = {}
            for place, record in enumerate(records):
                try:
                    key = tuple(value(record) for value in look_up) if on else (place,)
                except RbError as reason:
                    self.without += 1
                    self.reason = self.reason or reason
                    continue
                self.duplicates += key in rows
                rows[key] = record
            if rows:
                self._rows[label] = rows
        self._columns = {label: Columns(list(rows.values())) for label, rows in self._rows.items()}
        self._origin: dict[str, tuple[str, str]] = {}  # maps a column to (set, name in that set)

    @property
    def labels(self) -> list[str]:
        return list(self._rows)

    @property
    def datasets(self) -> list[str]:
        """The data sets in those sets of records that contain several data sets."""
        of_sets = [
            dict.fromkeys(str(record["dataset"]) for record in rows.values() if "dataset" in record)
            for rows in self._rows.values()
        ]
        return list(dict.fromkeys(name for names in of_sets if len(names) > 1 for name in names))

    def resolve(self, items: Iterable[str]) -> list[str]:
        """The columns of these items in all sets. An item that begins with LABEL: has columns only in the
        sets whose label matches. Raises UsageError if an item is missing in all records."""
        return list(dict.fromkeys(name for item in items for name in self._resolved(item)))

    def _resolved(self, item: str) -> list[str]:
        label, colon, bare = item.rpartition(":") if self.on else ("", "", item)
        chosen = expr.expand(label, self._rows) if colon else self.labels
        if not chosen:
            raise UsageError(f"No result set is called '{label}'. There are: {', '.join(self._rows)}.")
        names: list[str] = []
        for other in chosen:
            try:
                found = self._columns[other].resolve(bare)
            except UsageError:  # another set may have the metric
                if self.on:
                    continue
                raise
            here = {f"{other}:{name}" if self.on else name: (other, name) for name in found}
            self._origin |= here
            names += here
        if not names:
            raise unknown(bare, dict.fromkeys(name for one in chosen for name in self._columns[one].metrics))
        return names

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """The columns (N, M) from `resolve`, with one row for each joined record; NaN for missing numbers."""
        keys = list(dict.fromkeys(key for rows in self._rows.values() for key in rows))
        values = np.full((len(keys), len(names)), np.nan)
        for place, name in enumerate(names):
            label, metric = self._origin[name]
            numbers = dict(zip(self._rows[label], self._columns[label].column(metric), strict=True))
            values[:, place] = floats([numbers.get(key, math.nan) for key in keys])
        return values
