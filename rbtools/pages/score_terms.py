"""The initial terms of the page's score, which are the terms of rb-score if it has scored the records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rbtools.errors import RbError
from rbtools.pages import page_columns as board
from rbtools.records import expr, metric_name
from rbtools.records.results import is_number, last_entry
from rbtools.scoring import terms
from rbtools.scoring.composite import MISSING

Record = Mapping[str, Any]
Pair = tuple[float, float]


@dataclass
class PageTerm:
    """One term of the score. `names` contains the term's name (or an expression) in each record if these
    names differ, because a preset uses different metrics for some data sets."""

    metric: str
    weight: float
    higher: bool
    names: list[str] = field(default_factory=list)

    def described(self, records: Sequence[Record], intervals: Sequence[Mapping[str, Pair]]) -> dict[str, Any]:
        """The term for the page, with its values if the term is not a column of the table."""
        plain = {"metric": self.metric, "weight": self.weight, "higher": self.higher}
        known = not self.names and any(board.value(record, self.metric) is not None for record in records)
        if known:
            return plain
        names = self.names or [self.metric] * len(records)
        values = [_value(record, name) for record, name in zip(records, names, strict=True)]
        pairs = [of.get(name) for of, name in zip(intervals, names, strict=True)]
        different = list(dict.fromkeys(names))
        which = [different.index(name) for name in names]
        return {
            **plain,
            "title": metric_name.heading(self.metric),
            "own": metric_name.higher_is_better(self.metric),
            "values": values,
            "lows": [pair and pair[0] for pair in pairs],
            "highs": [pair and pair[1] for pair in pairs],
            **({"names": different, "which": which} if self.names else {}),
        }


@dataclass
class Score:
    """A page's score, for which metrics are scaled in groups with the same values of the fields `within`."""

    terms: list[PageTerm]
    within: list[str] = field(default_factory=list)
    missing: str = "refuse"
    preset: str | None = None


def score(records: Sequence[Record]) -> Score:
    """The score with which rb-score scored all these records, or else all headline metrics that every record
    has, with equal weights."""
    return _agreed(records) or Score(_common(records))


def _agreed(records: Sequence[Record]) -> Score | None:
    """The score that all records have in common; None if there is none, or if the scores' settings differ."""
    entries = [last_entry(record, "score") for record in records]
    first, *others = map(_make, entries)
    if first is None or any(make != first for make in others):
        return None
    try:
        for name in first[1]:
            expr.compile(name)
    except RbError:
        return None
    own = [PageTerm(name, weight, bool(higher)) for name, weight, higher in terms.of_entry(entries[0])]
    agreed = Score(own, *first[1:])
    presets = terms.presets()
    usual = [term.metric for term in presets[agreed.preset].terms] if agreed.preset in presets else []
    for place, term in enumerate(agreed.terms):
        names = [str(entry["terms"][place]["metric"]) for entry in entries]
        if len(set(names)) > 1:
            term.metric, term.names = next((name for name in names if name in usual), names[0]), names
    return agreed


def _make(entry: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """The settings that must be the same in all entries; None if the entry is not from rb-score."""
    listed = terms.of_entry(entry)
    within, missing, preset = entry.get("within") or {}, entry.get("missing", "refuse"), entry.get("preset")
    if not listed or not isinstance(within, Mapping) or missing not in MISSING:
        return None
    weights = [(weight, higher) for _, weight, higher in listed]
    return weights, list(within), missing, preset if isinstance(preset, str) else None


def _common(records: Sequence[Record]) -> list[PageTerm]:
    names = _headlines([name for name in metric_name.names(records) if name != "score"])
    return [
        PageTerm(name, 1.0, metric_name.higher_is_better(name))
        for name in names
        if all(board.value(record, name) is not None for record in records)
    ]


def _headlines(names: Sequence[str]) -> list[str]:
    """One metric for each curve: at 8/255, or else at the middle distance. The mean over corruptions replaces
    the single corruptions."""
    families: dict[object, list[str]] = {}
    for name in names:
        parts = metric_name.parse(name)
        if parts.stem == "corrupt" and "corrupt.mean" in names and name != "corrupt.mean":
            continue
        families.setdefault(parts._replace(number="") if parts.over else name, []).append(name)
    chosen = []
    for some in families.values():
        ordered = sorted(some, key=lambda name: float(metric_name.parse(name).number or 0))
        usual = [name for name in some if metric_name.parse(name).number == "8"]
        chosen.append(usual[0] if usual else ordered[len(ordered) // 2])
    return chosen


def _value(record: Record, name: str) -> float | None:
    metric = (record.get("metrics") or {}).get(name)
    if metric is not None:
        return float(metric)
    try:
        value = expr.Expression(name, any_name=True)(record)
    except RbError:
        return None
    return value if is_number(value) else None
