"""Reads numbers from records: the metrics in an option, one value for each record, and groups of records."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from rbtools.errors import RbError, near
from rbtools.plots import style, words
from rbtools.records import expr, metric_name, results
from rbtools.scoring.columns import EXACT
from rbtools.spaces import nasbench201

Record = dict[str, Any]


def _each(
    records: Sequence[Record], text: str, option: str, taken: Callable[[expr.Expression, Record], Any]
) -> list[Any]:
    """The result of `taken` for each record; None if `taken` raises RbError. Raises RbError, which names the
    option, if the text cannot be parsed, or if no record has a result."""
    values: list[Any] = []
    wrong: RbError | None = None
    try:
        compiled = expr.Expression(text, any_name=True)
        for record in records:
            try:
                values.append(taken(compiled, record))
            except RbError as error:
                values.append(None)
                wrong = wrong or error
        if all(value is None for value in values):
            if wrong is None:  # this raises an error for a wrong name
                compiled({**records[0], "metrics": dict.fromkeys(metric_name.names(records))})
            raise wrong or RbError(f"No record has a value for '{text}'.")
    except RbError as error:
        raise RbError(f"{option}: {error}") from None
    return values


def column(records: Sequence[Record], text: str, option: str) -> list[float | None]:
    """The value of a metric or an expression for each record; None if a record has no value. Raises RbError,
    which names the option, if the text cannot be parsed, if no record has a value (the message suggests
    similar names), or if no value is a number. Integers above 2^53 are not converted to floats."""
    numbers = _each(records, text, option, lambda compiled, record: compiled.number(record))
    return [
        value if value is None or (isinstance(value, int) and abs(value) > EXACT) else float(value)
        for value in numbers
    ]


def ordered(records: Sequence[Record], by: str) -> list[int]:
    """The indices of the records that have a value of the expression `by`, with the best record first."""
    values = column(records, by, "--by")
    sign = -1 if metric_name.higher_is_better(by) else 1
    known = [(sign * value, place) for place, value in enumerate(values) if value is not None]
    return [place for _, place in sorted(known)]


def present(column: Sequence[float | None]) -> list[float]:
    return [value for value in column if value is not None]


def chosen(records: Sequence[Record], text: str | None, option: str) -> list[str]:
    """The metrics and expressions in a list, in which each glob is replaced by the metrics that match it.
    If `text` is None, the result is `score` if the records have a score, or else the last evaluated metric.
    Raises RbError, which names the option, if no metric matches a glob or the list is empty."""
    if text is None:
        return [metric_name.default_rank_key(records)]
    known = metric_name.names(records)
    items = [text] if text in known else expr.items(text)
    if not items:
        raise RbError(f"{option} is empty. Expected metrics separated by commas, such as acc,pgd20.*")
    names: dict[str, None] = {}
    for item in items:
        bare = expr.is_bare(item) and expr.is_glob(item)
        try:
            names.update(dict.fromkeys(expr.select(known, item) if bare else [item]))
        except RbError as wrong:
            raise RbError(f"{option}: {wrong}") from None
    return list(names)


def named(text: str, known: Collection[str], lacking: str, there: str) -> list[str]:
    """The names in a list, in which each glob is replaced by the known names that match it. Raises RbError if
    a name is not known (the message begins with `lacking` and lists the known names after `there`), or if the
    list is empty."""
    names: dict[str, None] = {}
    for item in expr.items(text):
        matching = expr.expand(item, known)
        if not matching:
            raise RbError(f"--metric: {lacking} '{item}'.{near(item, known)} {there}: {', '.join(known)}.")
        names.update(dict.fromkeys(matching))
    if not names:
        raise RbError("--metric is empty. Expected metrics separated by commas, such as fgsm.8,pgd20.*")
    return list(names)


def keys(records: Sequence[Record], text: str, option: str) -> list[str]:
    """For each record, the values of the expressions in a list, as text on one line. Raises RbError, which
    names the option, if an expression cannot be parsed, if no record has a value, or if the list is empty."""
    items = expr.items(text)
    if not items:
        raise RbError(f"{option} is empty. Expected fields separated by commas, such as dataset,arch.name")
    columns = [_each(records, item, option, _text) for item in items]
    return [", ".join(text or "without" for text in row) for row in zip(*columns, strict=True)]


def _text(compiled: expr.Expression, record: Record) -> str:
    value = words.method(record) if compiled.text == "train.method" else compiled(record)
    if isinstance(value, list):
        value = "+".join(map(str, value)) or None
    return words.shortened(words.tidy("none" if value is None else value))


def groups(records: Sequence[Record], text: str, option: str) -> dict[str, list[int]]:
    """Map each value of a list of expressions to the indices of the records with this value (see `keys`).
    Training methods are in the order of `style.METHODS`, and other values in order of first occurrence."""
    at: dict[str, list[int]] = {}
    for place, key in enumerate(keys(records, text, option)):
        at.setdefault(key, []).append(place)
    if at.keys() <= style.METHODS.keys():
        return {name: at[name] for name in style.METHODS if name in at}
    return at


def cell(record: Record) -> tuple[int, ...] | None:
    """The operations of a cell in NAS-Bench-201; None for other spaces, or if the operations are unknown."""
    arch = record.get("arch")
    if not isinstance(arch, dict) or arch.get("space") != nasbench201.NASBench201.name:
        return None
    with contextlib.suppress(RbError):
        return nasbench201.ops_of(arch)
    return None


def intervals(record: Mapping[str, Any]) -> dict[str, tuple[float, float]]:  # by metric
    pairs = ((name, results.interval(entry)) for name, entry in results.by_metric(record).items())
    return {name: ends for name, ends in pairs if ends is not None}


def interval_note(shown: str, records: Sequence[Record], names: Collection[str]) -> str:
    """What the bands or error bars are, with the numbers of images of these metrics."""
    entries = [
        entry for record in records for name, entry in results.by_metric(record).items() if name in names
    ]
    counts = [
        int(entry["n"]) for entry in entries if results.interval(entry) and results.is_number(entry.get("n"))
    ]
    return f"{shown}: 95 % intervals" + (f", n = {words.span(counts)}." if counts else ".")


def deviations(record: Record) -> dict[str, float]:
    """Map each metric to its standard deviation over the averaged records (rb-rank --aggregate)."""
    entries = results.by_metric(record).items()
    return {name: float(entry["std"]) for name, entry in entries if results.is_number(entry.get("std"))}
