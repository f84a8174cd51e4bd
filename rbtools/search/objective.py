"""The objective of a search: a metric or an expression of metrics, and its direction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools.errors import RbError, UsageError
from rbtools.records import expr, metric_name

if TYPE_CHECKING:
    from rbtools.search.driver import Algorithm


class SearchObjective(NamedTuple):
    """One quantity to optimise. `text` is what the user wrote; `higher`: more is better."""

    text: str
    higher: bool
    expression: expr.Expression

    def of(self, record: Mapping[str, Any]) -> float | None:
        """Its value, None if that is no finite number. Raises expr.MissingName or RbError."""
        value = self.expression(record)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return None
        return float(value)

    def upward(self, value: float) -> float:
        """The value, negated if lower is better, so that more is better; its own inverse."""
        return value if self.higher else -value

    @property
    def direction(self) -> str:
        return "higher" if self.higher else "lower"


def objectives(texts: Sequence[str]) -> tuple[SearchObjective, ...]:
    """Parse `EXPR[:lower|higher]`, several with commas; the default direction is the metric's own.

    Raises UsageError for none, a duplicate, or an expression that does not parse.
    """
    parsed: dict[str, SearchObjective] = {}
    for piece in [piece for text in texts for piece in expr.items(text)]:
        text, colon, word = piece.rpartition(":")
        directed = bool(colon) and word in ("lower", "higher")
        text = text.strip() if directed else piece
        higher = metric_name.higher_is_better(text)
        try:
            compiled = expr.compile(text)
        except RbError as wrong:
            raise UsageError(f"--objective: {wrong}") from None
        if text in parsed:
            raise UsageError(f"--objective names '{text}' twice. Name it once.")
        parsed[text] = SearchObjective(text, word == "higher" if directed else higher, compiled)
    if not parsed:
        raise UsageError("--objective is missing. Expected a metric such as pgd20.8, or an expression.")
    return tuple(parsed.values())


def asked_of(algorithm: Algorithm, texts: Sequence[str]) -> tuple[SearchObjective, ...]:
    """The objectives of an algorithm. Raises UsageError for more than it takes."""
    wanted = objectives(texts)
    if len(wanted) > 1 and not algorithm.many:
        raise UsageError(
            f"rb-search {algorithm.name} takes one objective, and there are {len(wanted)}. Make one"
            f" of them, such as 'mean({wanted[0].text}, {wanted[1].text})', or use rb-search nsga2."
        )
    return wanted
