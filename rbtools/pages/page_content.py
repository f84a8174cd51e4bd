"""The content of the leaderboard page: columns of numbers, and records in a short form. Values that many
records share (protocols, command lines) are stored once and are referred to by index, so a browser opens a
page of 6,466 records without delay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rbtools import __version__
from rbtools.pages import page_columns as board
from rbtools.pages import score_terms
from rbtools.pages.whole_pipe import steps_of
from rbtools.plots import record_values
from rbtools.records import dumps, expr, metric_name, results, schema
from rbtools.scoring.groups import field

Record = Mapping[str, Any]
Pair = tuple[float, float]
Indices = dict[str, int]  # text -> its index in the page's list of texts

FIELDS = {"dataset": "Data set", "arch.name": "Model", "train.method": "Training", "train.seed": "Seed"}
# Results that the page computes itself; in the records, they may refer to other records.
_REPLACED = frozenset(field.name for field in schema.RECORD if field.role == "result")


def content(records: Sequence[Record], title: str) -> dict[str, Any]:
    """All data of the page, which are then encoded as JSON. Raises RbError if no record has a metric."""
    ranked, score = metric_name.default_rank_key(records), score_terms.score(records)
    shown = board.columns(records)
    intervals = [record_values.intervals(record) for record in records]
    steps: Indices = {}
    protocols: Indices = {}
    rows = [_row(record, steps, protocols) for record in records]
    return {
        "title": title,
        "version": __version__,
        "fields": _fields(records),
        "groups": board.GROUPS,
        "columns": [_column(records, intervals, column) for column in shown],
        "curves": [curve._asdict() for curve in board.curves(column.name for column in shown)],
        "ranked": ranked,
        "terms": [term.described(records, intervals) for term in score.terms],
        "scopes": _scopes(records, score.within),
        "within": score.within,
        "missing": score.missing,
        "preset": score.preset,
        "score": [board.value(record, "score") for record in records],
        "rows": rows,
        "steps": list(steps),
        "protocols": list(protocols),
    }


def _fields(records: Sequence[Record]) -> list[dict[str, Any]]:
    fields = []
    for path, title in FIELDS.items():
        values = [_text(results.at(record, path.split("."))) for record in records]
        differs = len(set(values)) > 1
        if path == "arch.name" or (differs if path == "train.seed" else any(values)):
            fields.append({"path": path, "title": title, "values": values})
    return fields


def _text(value: object) -> str | None:
    if value is None or isinstance(value, Mapping | list):
        return None
    return value if isinstance(value, str) else dumps({"": value}).decode()[4:-1]


def _column(
    records: Sequence[Record], intervals: Sequence[Mapping[str, Pair]], column: board.PageColumn
) -> dict[str, Any]:
    described = {
        **column._asdict(),
        "metric": column.name not in board.ARCH_COUNTS,
        "values": [board.value(record, column.name) for record in records],
    }
    pairs = [of.get(column.name) for of in intervals]
    if any(pairs):
        described["lows"] = [pair and pair[0] for pair in pairs]
        described["highs"] = [pair and pair[1] for pair in pairs]
    return described


def _scopes(records: Sequence[Record], within: Sequence[str]) -> list[dict[str, Any]]:
    """The ways to group records before metrics are scaled, with the group of each record."""
    scopes: list[dict[str, Any]] = []
    for choice in ([], ["dataset"], ["dataset", "arch.name"], list(within)):
        keys, groups = _groups(records, choice)
        useful = choice in ([], list(within)) or 0 < max(groups) < len(records) - 1
        if useful and all(choice != other["within"] and groups != other["groups"] for other in scopes):
            scopes.append({"within": choice, "groups": groups, "keys": keys})
    return scopes


def _groups(records: Sequence[Record], names: Sequence[str]) -> tuple[list[dict[str, Any]], list[int]]:
    """The groups that the fields define, and the group of each record. Missing values count as equal."""
    fields = [field(name) for name in names]
    numbers: dict[str, int] = {}
    keys: list[dict[str, Any]] = []
    groups = []
    for record in records:
        values = [_value(look_up, record) for look_up in fields]
        number = numbers.setdefault(repr(values), len(numbers))
        if number == len(keys):
            keys.append(dict(zip(names, values, strict=True)))
        groups.append(number)
    return keys, groups


def _value(look_up: Callable[[Record], Any], record: Record) -> Any:
    try:
        return look_up(record)
    except expr.MissingName:
        return None


def _row(record: Record, steps: Indices, protocols: Indices) -> dict[str, Any]:
    base = {key: value for key, value in record.items() if key not in _REPLACED}
    if isinstance(base.get("train"), Mapping):
        base["train"] = {key: value for key, value in base["train"].items() if key != "history"}
    return {
        "base": dumps(base).decode(),
        "evals": [
            _entry(entry, protocols) for entry in record.get("evals") or () if entry.get("metric") != "score"
        ],
        "steps": [steps.setdefault(text, len(steps)) for text in steps_of(record)],
    }


def _entry(entry: Mapping[str, Any], protocols: Indices) -> Any:
    """The index of an entry's protocol, and its own fields, if any; columns contain value and interval."""
    omitted = schema.on_page("omitted")
    shared = {key: value for key, value in entry.items() if key not in omitted and key != "value"}
    if results.interval(shared) is not None:
        del shared["ci95"]
    own = {key: shared.pop(key) for key in schema.on_page("own") if key in shared}
    number = protocols.setdefault(dumps(shared).decode(), len(protocols))
    return [number, dumps(own).decode()] if own else number
