"""Composite scores under several weightings, one for each record or group of records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rbtools.errors import RbError, near
from rbtools.plots import values, words
from rbtools.records import expr, metrics

Record = dict[str, Any]


class Rows(NamedTuple):
    """Named rows of numbers: the means over the records of each group, and how many those are.

    numbers: one list a row, one number a column, None where no record of the group has one.
    """

    names: list[str]
    numbers: list[list[float | None]]
    counts: list[int]


def weightings(text: str | None, names: Sequence[str]) -> dict[str, list[float]]:
    """Read `equal; robust: pgd20.8=3, pr.*=2`: a weight for each metric, 1 where none is given.

    Raises RbError for a weight that is no number or below 0, and a metric that is not among `names`.
    """
    found: dict[str, list[float]] = {}
    for part in (text or "equal").split(";"):
        title, _, body = part.partition(":")
        if not title.strip():
            continue
        weights = dict.fromkeys(names, 1.0)
        for item in expr.items(body):
            name, equals, number = item.rpartition("=")
            matching = expr.expand(name.strip(), names)
            if not equals or not matching:
                raise RbError(
                    f"--weightings: '{item}' is no METRIC=WEIGHT.{near(name.strip(), names)} The metrics are:"
                    f" {', '.join(names)}."
                )
            weights.update(dict.fromkeys(matching, _weight(number, item)))
        if not any(weights.values()):
            raise RbError(f"--weightings: all weights of '{title.strip()}' are 0. One must be above 0.")
        found[words.tidy(title)] = list(weights.values())
    if not found:
        raise RbError("--weightings is empty. Expected such as 'equal; robust: pgd20.8=3'.")
    return found


def _weight(text: str, item: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = -1.0
    if not 0 <= weight < float("inf"):
        raise RbError(
            f"--weightings: the weight in '{item}' is '{text.strip()}'. Expected a number, 0 or more."
        )
    return weight


def chosen(records: Sequence[Record], text: str | None) -> list[str]:
    """The metrics of the score: those of the list, else all that every record has."""
    if text is not None:
        return values.chosen(records, text, "--metric")
    common = [
        name
        for name in metrics.names(records)
        if name != "score" and all((record.get("metrics") or {}).get(name) is not None for record in records)
    ]
    if not common:
        raise RbError("There is no metric that all records have. Name some with --metric.")
    return common


def scores(
    records: Sequence[Record],
    names: Sequence[str],
    weights: dict[str, list[float]],
    within: str | None,
    scoring: Any,
) -> list[list[float | None]]:
    """A column for each weighting: the composite score of each record, min-max over those that agree in the
    fields of `within`, or over all.
    """
    columns = [values.column(records, name, "--metric") for name in names]
    blocks = _blocks(records, within)
    found = []
    for given in weights.values():
        kept = [place for place, weight in enumerate(given) if weight > 0]
        column: list[float | None] = [None] * len(records)
        for block in blocks:
            parts = [[columns[k][place] for place in block] for k in kept]
            scored = scoring.scores(parts, [names[k] for k in kept], [given[k] for k in kept])
            for place, score in zip(block, scored, strict=True):
                column[place] = score
        found.append(column)
    return found


def _blocks(records: Sequence[Record], within: str | None) -> list[list[int]]:
    """The places of the records that agree in the fields of a list."""
    found: dict[tuple[str, ...], list[int]] = {}
    keys = [_keys(records, item, "--within") for item in expr.items(within or "")]
    for place in range(len(records)):
        found.setdefault(tuple(column[place] for column in keys), []).append(place)
    return list(found.values())


def together(records: Sequence[Record], within: str | None) -> str:
    """A remark for the title where several data sets were scaled as one; empty elsewhere."""
    sets = {str(record.get("dataset")) for record in records}
    return f", scaled over {len(sets)} data sets together" if len(sets) > 1 and within is None else ""


def grouped(records: Sequence[Record], columns: Sequence[Sequence[float | None]], group: str | None) -> Rows:
    """Means of the columns over the records that agree in `group`, or the records themselves."""
    keys = words.tags(records) if group is None else _keys(records, group, "--group")
    at: dict[str, list[int]] = {}
    for place, key in enumerate(keys):
        at.setdefault(key, []).append(place)
    numbers = [[_mean([column[place] for place in places]) for column in columns] for places in at.values()]
    return Rows(list(at), numbers, [len(places) for places in at.values()])


def _keys(records: Sequence[Record], text: str, option: str) -> list[str]:
    try:
        compiled = expr.compile(text)
        return [words.shortened(words.tidy(compiled(record))) for record in records]
    except RbError as wrong:
        raise RbError(f"{option}: {wrong}") from None


def _mean(numbers: Sequence[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return sum(known) / len(known) if known else None


def best(rows: Rows, top: int) -> Rows:
    """The rows that are highest in their first column, so many of them; those that lack a number are last.

    A score over one metric of four is no better than one over all of them for being higher.
    """

    def place(row: int) -> tuple[int, float]:
        first, *_ = numbers = rows.numbers[row]
        return -numbers.count(None), -1.0 if first is None else first

    order = sorted(range(len(rows.names)), key=place, reverse=True)[:top]
    return Rows(
        [rows.names[row] for row in order],
        [rows.numbers[row] for row in order],
        [rows.counts[row] for row in order],
    )
