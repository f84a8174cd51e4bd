"""The numbers of a stream of records, a column for each metric: a million records fit in memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Any

from rbtools.errors import RbError, UsageError, near
from rbtools.records import expr

ABSENT = float("nan")


class Columns:
    """Columns with one place per record; NaN where a record has no such number.

    All metrics that records have are columns, and so are the `items` that are expressions over them
    (`mean(fgsm.*)`) or fields of the record (`arch.params`), which are computed as records come.
    """

    def __init__(self, items: Iterable[str] = ()) -> None:
        self.count = 0
        self._numbers: dict[str, array[float]] = {}
        self._computed: dict[str, expr.Expression] = {}
        self._wrong: dict[str, RbError] = {}
        self._no_number: dict[str, RbError] = {}
        self._names: dict[str, None] = {}
        for item in items:
            if expr.is_bare(item) and expr.is_glob(item):
                continue
            try:
                self._computed[item] = expr.compile(item)
            except RbError as wrong:  # a metric may have any name, so this is decided when there are records
                self._wrong[item] = wrong

    def add(self, record: Mapping[str, Any]) -> None:
        """Add the numbers of the next record."""
        metrics = record.get("metrics") or {}
        for name, value in metrics.items():
            if value is not None:
                self._append(name, value)
                if name not in self._names:
                    self._names[name] = None
        for name, computed in self._computed.items():
            if name not in metrics:
                try:
                    value = computed.number(record)
                # missing in this record; `resolve` raises an error if all records lack it
                except RbError as wrong:
                    self._no_number.setdefault(name, wrong)
                    continue
                if value is not None:
                    self._append(name, value)
        self.count += 1

    def _append(self, name: str, value: float) -> None:
        column = self._numbers.get(name)
        if column is None or len(column) != self.count:
            column = self.column(name)
        column.append(value)

    def column(self, name: str) -> array[float]:
        """A column's numbers, with NaN for each record so far that has none."""
        column = self._numbers.setdefault(name, array("d"))
        column.extend(array("d", [ABSENT]) * (self.count - len(column)))
        return column

    @property
    def metrics(self) -> list[str]:
        """The metrics of the records, in order of first occurrence."""
        return list(self._names)

    def resolve(self, item: str) -> list[str]:
        """The columns of an item: itself, or all metrics that a glob matches. Raises UsageError if no record
        has it, or has a number there.
        """
        if item in self._names:
            return [item]
        if item in self._wrong:
            raise UsageError(str(self._wrong[item]))
        names = expr.expand(item, self._names) if expr.is_bare(item) else []
        if not names and item in self._numbers:
            return [item]
        if not names and item in self._no_number:
            raise UsageError(str(self._no_number[item]))
        if not names:
            raise unknown(item, self._names)
        return names


def unknown(name: str, known: Iterable[str]) -> UsageError:
    """The error for a metric, a glob or an expression that no record has."""
    known = list(known)
    listed = expr.nearest(name, known) if known else "no metrics at all: evaluate them, as with rb-attack"
    if expr.is_bare(name):
        return UsageError(f"No record has the metric '{name}'.{near(name, known)} They have: {listed}.")
    return UsageError(f"No record has what '{name}' is made of. They have: {listed}.")
