"""The objective of a search: a metric or an expression of metrics, and its direction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rbtools.errors import RbError, UsageError
from rbtools.records import expr
from rbtools.records.results import is_number
from rbtools.scoring.rank_order import Directions


class SearchObjective(NamedTuple):
    """A quantity to optimise. `text` is what the user typed, and `higher` is true if higher is better."""

    text: str
    higher: bool
    expression: expr.Expression

    def of(self, record: Mapping[str, Any]) -> float | None:
        """Returns the value in a record, or None if it is not finite. Raises expr.MissingName or RbError."""
        value = self.expression(record)
        return float(value) if is_number(value) and math.isfinite(value) else None

    def upward(self, value: float) -> float:
        """Returns the value, negated if lower is better. The function is its own inverse."""
        return value if self.higher else -value

    @property
    def direction(self) -> str:
        return "higher" if self.higher else "lower"


def objectives(texts: Sequence[str], directions: Directions) -> tuple[SearchObjective, ...]:
    """Parse lists of metrics or expressions, separated by commas. Raises UsageError for an empty list, a
    duplicate, a wrong direction, or an expression that cannot be parsed."""
    parsed: dict[str, SearchObjective] = {}
    items = [item for text in texts for item in expr.items(text)]
    for text, higher in directions.sort_keys(items, "--objective"):
        try:
            compiled = expr.Expression(text, any_name=True)
        except RbError as wrong:
            raise UsageError(f"--objective: {wrong}") from None
        if text in parsed:
            raise UsageError(f"--objective contains '{text}' twice. Give it once.")
        parsed[text] = SearchObjective(text, higher, compiled)
    if not parsed:
        raise UsageError("--objective is missing. Expected a metric such as pgd20.8, or an expression.")
    return tuple(parsed.values())
