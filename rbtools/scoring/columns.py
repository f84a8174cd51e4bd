"""Columns of numbers from records: metrics, expressions or fields."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rbtools.errors import RbError, UsageError, near
from rbtools.records import expr

EXACT = 2**53  # from here on, a float does not represent every integer


class Columns:
    """Columns with one number for each record; NaN if a record does not have the number. The numbers are
    floats, or integers above 2^53. `metrics` lists the metrics of the records, in order of first occurrence.
    """

    def __init__(self, records: Sequence[Mapping[str, Any]]) -> None:
        self.records = records
        some = ((name for name, v in (r.get("metrics") or {}).items() if v is not None) for r in records)
        self.metrics = list(dict.fromkeys(name for names in some for name in names))
        self._columns: dict[str, list[float]] = {}
        self._wrong: dict[str, RbError] = {}

    def column(self, item: str) -> list[float]:
        if item not in self._columns:
            value = expr.Expression(item, any_name=True)
            self._columns[item] = [self._number(value, record) for record in self.records]
        return self._columns[item]

    def _number(self, value: expr.Expression, record: Mapping[str, Any]) -> float:
        metrics = record.get("metrics") or {}
        try:
            number = metrics[value.text] if value.text in metrics else value.number(record)
        except RbError as wrong:  # `resolve` raises it if no record has a number
            self._wrong.setdefault(value.text, wrong)
            number = None
        exact = isinstance(number, int) and abs(number) > EXACT
        return math.nan if number is None else number if exact else float(number)

    def resolve(self, item: str) -> list[str]:
        """The item itself or, if the item is a glob, all metrics that match. Raises UsageError if no record
        has the item, or if the item is not a number in any record."""
        if item in self.metrics:
            return [item]
        if expr.is_bare(item) and (names := expr.expand(item, self.metrics)):
            return names
        if not (expr.is_bare(item) and expr.is_glob(item)):
            if any(number == number for number in self.column(item)):
                return [item]
            if item in self._wrong:
                raise UsageError(str(self._wrong[item]))
            try:
                expr.compile(item)
            except RbError as wrong:
                raise UsageError(str(wrong)) from None
        raise unknown(item, self.metrics)


def unknown(name: str, known: Iterable[str]) -> UsageError:
    """The error that is raised if no record has the requested metric, glob or expression."""
    known = list(known)
    listed = expr.nearest(name, known) if known else "no metrics at all: evaluate them, as with rb-attack"
    if expr.is_bare(name):
        return UsageError(f"No record has the metric '{name}'.{near(name, known)} They have: {listed}.")
    return UsageError(f"No record has the metrics or fields in '{name}'. They have: {listed}.")
