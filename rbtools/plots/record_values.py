"""Numbers from records: the metrics that an option names, one value per record, and groups of records."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

from rbtools.errors import RbError, near
from rbtools.plots import style, words
from rbtools.records import expr, metric_name, results
from rbtools.spaces import nasbench201

Record = dict[str, Any]


def _each(
    records: Sequence[Record], text: str, option: str, taken: Callable[[expr.Expression, Record], Any]
) -> list[Any]:
    """What is taken of an expression for each record, None where that raises RbError. Raises RbError, naming
    the option, if the text does not parse, or if nothing can be taken of any record."""
    values: list[Any] = []
    wrong: RbError | None = None
    try:
        compiled = expr.compile(text)
        for record in records:
            try:
                values.append(taken(compiled, record))
            except RbError as error:
                values.append(None)
                wrong = wrong or error
        if all(value is None for value in values):
            if wrong is None:  # this raises an error for a wrong name
                compiled({**records[0], "metrics": dict.fromkeys(metric_name.names(records))})
            raise wrong or RbError(f"No record has a value of '{text}'.")
    except RbError as error:
        raise RbError(f"{option}: {error}") from None
    return values


def column(records: Sequence[Record], text: str, option: str) -> list[float | None]:
    """The value of a metric or an expression for each record, None where it has none.

    Raises RbError, naming the option, if the text does not parse, if no record has such a value (with similar
    names), and if no record has a number there.
    """
    numbers = _each(records, text, option, lambda compiled, record: compiled.number(record))
    return [None if value is None else float(value) for value in numbers]


def ordered(records: Sequence[Record], by: str, option: str) -> list[int]:
    """The places of the records that have a value of an expression, the best first; see `column`."""
    values = column(records, by, option)
    sign = -1 if metric_name.higher_is_better(by) else 1
    known = [(sign * value, place) for place, value in enumerate(values) if value is not None]
    return [place for _, place in sorted(known)]


def present(column: Sequence[float | None]) -> list[float]:
    """The numbers of a column without the missing ones."""
    return [value for value in column if value is not None]


def chosen(records: Sequence[Record], text: str | None, option: str) -> list[str]:
    """The metrics and expressions of a list, globs among them replaced by what they match.

    Without a text: `score` if there is one, else the metric that was evaluated last. Raises RbError, naming
    the option, for a glob that matches nothing and for an empty list.
    """
    if text is None:
        return [metric_name.default_rank_key(records)]
    items = expr.items(text)
    if not items:
        raise RbError(f"{option} is empty. Expected metrics with commas, such as acc,pgd20.*")
    known = metric_name.names(records)
    names: dict[str, None] = {}
    for item in items:
        bare = expr.is_bare(item) and expr.is_glob(item)
        try:
            names.update(dict.fromkeys(expr.select(known, item) if bare else [item]))
        except RbError as wrong:
            raise RbError(f"{option}: {wrong}") from None
    return list(names)


def named(text: str, known: Collection[str], lacking: str, there: str) -> list[str]:
    """The names of a list, globs among them replaced by the known names that they match.

    Raises RbError, with what is lacking and which names are there, for one that is not known, and for an
    empty list.
    """
    names: dict[str, None] = {}
    for item in expr.items(text):
        matching = expr.expand(item, known)
        if not matching:
            raise RbError(f"--metric: {lacking} '{item}'.{near(item, known)} {there}: {', '.join(known)}.")
        names.update(dict.fromkeys(matching))
    if not names:
        raise RbError("--metric is empty. Expected metrics with commas, such as fgsm.8,pgd20.*")
    return list(names)


def keys(records: Sequence[Record], text: str, option: str) -> list[str]:
    """The value of an expression, or of each in a list, for every record, as text on one line. `without`
    stands for a missing one. Raises RbError, naming the option, if an expression does not parse, if no record
    has it, and for an empty list.
    """
    items = expr.items(text)
    if not items:
        raise RbError(f"{option} is empty. Expected fields with commas, such as dataset,arch.name")
    columns = [_each(records, item, option, _text) for item in items]
    return [", ".join(text or "without" for text in row) for row in zip(*columns, strict=True)]


def _text(compiled: expr.Expression, record: Record) -> str:
    """A value of a record on one line; for a list its parts."""
    value = words.method(record) if compiled.text == "train.method" else compiled(record)
    if isinstance(value, list):
        value = "+".join(map(str, value)) or None
    return words.shortened(words.tidy("none" if value is None else value))


def groups(records: Sequence[Record], text: str, option: str) -> dict[str, list[int]]:
    """The places of the records that agree in an expression or a list of them, by its value; see `keys`.
    Training methods are in the order of all figures, others in order of first occurrence.
    """
    at: dict[str, list[int]] = {}
    for place, key in enumerate(keys(records, text, option)):
        at.setdefault(key, []).append(place)
    if at.keys() <= style.METHODS.keys():
        return {name: at[name] for name in style.METHODS if name in at}
    return at


def cell(record: Record) -> tuple[int, ...] | None:
    """The operations of a record of NAS-Bench-201; None for others, and if the record does not name them."""
    arch = record.get("arch")
    if not isinstance(arch, dict) or arch.get("space") != nasbench201.NASBench201.name:
        return None
    with contextlib.suppress(RbError):
        return nasbench201.ops_of(arch)
    return None


def intervals(record: Record) -> dict[str, tuple[float, float]]:
    """Metric -> its 95 % interval, for those that were measured with one."""
    pairs = ((name, results.interval(entry)) for name, entry in results.by_metric(record).items())
    return {name: ends for name, ends in pairs if ends is not None}


def deviations(record: Record) -> dict[str, float]:
    """Metric -> the standard deviation over the averaged records (rb-rank --aggregate)."""
    entries = results.by_metric(record).items()
    return {name: float(entry["std"]) for name, entry in entries if results.is_number(entry.get("std"))}
