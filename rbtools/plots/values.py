"""Numbers out of records: what an option names, one value a record, and how it is called on an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rbtools.errors import RbError
from rbtools.records import expr, metrics

Record = dict[str, Any]


def column(records: Sequence[Record], text: str, option: str) -> list[float | None]:
    """The value of a metric or an expression for each record, None where it has none.

    Raises RbError, naming the option, where the text does not parse, where no record has such a value
    (with the near misses), and where a value is no number.
    """
    try:
        compiled = expr.compile(text)
        return _values(records, compiled)
    except RbError as wrong:
        raise RbError(f"{option}: {wrong}") from None


def _values(records: Sequence[Record], compiled: expr.Expression) -> list[float | None]:
    found: list[float | None] = []
    reason: RbError | None = None
    for record in records:
        try:
            value = compiled(record)
        except RbError as wrong:
            value, reason = None, reason or wrong
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise RbError(f"'{compiled.text}' is {value!r} for a record, which is not a number.")
        found.append(None if value is None else float(value))
    if reason is not None and all(value is None for value in found):
        if isinstance(reason, expr.MissingName):
            known = dict.fromkeys(metrics.names(records))
            raise expr.MissingName(reason.name, {**records[0], "metrics": known})
        raise reason
    return found


def chosen(records: Sequence[Record], text: str | None, option: str) -> list[str]:
    """The metrics and expressions of a list, globs among them replaced by what they match.

    Without a text: `score` where there is one, else the metric that was evaluated last. Raises RbError,
    naming the option, for a glob that matches nothing and for an empty list.
    """
    if text is None:
        return [metrics.default_rank_key(records)]
    items = split(text)
    if not items:
        raise RbError(f"{option} is empty. Expected metrics with commas, such as acc,pgd20.*")
    known = metrics.names(records)
    found: dict[str, None] = {}
    for item in items:
        bare = expr.is_glob(item) and not set("()+/ ") & set(item)
        try:
            found.update(dict.fromkeys(expr.select(known, item) if bare else [item]))
        except RbError as wrong:
            raise RbError(f"{option}: {wrong}") from None
    return list(found)


def split(text: str) -> list[str]:
    """The items of a list with commas; those inside brackets belong to their item."""
    items, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            items.append(text[start:place])
            start = place + 1
    items.append(text[start:])
    return [item.strip() for item in items if item.strip()]
