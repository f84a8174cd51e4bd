"""Report of a conversion: errors, notes and losses, each kind once with its count and first place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rbtools.formats.base import RESULTS

SHOWN = 24  # the most kinds in one line


class ConversionReport:
    """Messages of a conversion. `wrong`: invalid contents of a file; `notes`: harmless but unexpected ones;
    `lost`: contents that the target format cannot express, group -> kind -> count. `ours`: the units were
    made from records, so that their scale is certain.
    """

    def __init__(self, *, ours: bool = False) -> None:
        self.ours = ours
        self.wrong: dict[str, list[Any]] = {}
        self.notes: dict[str, list[Any]] = {}
        self.lost: dict[str, dict[str, int]] = {}

    def error(self, problem: str, where: str) -> None:
        """Add contents that could not be read. `problem` is a clause without a full stop."""
        _count(self.wrong, problem, where)

    def note(self, notify: str, where: str) -> None:
        """Add a harmless note, a clause without a full stop."""
        _count(self.notes, notify, where)

    def lose(self, group: str, kind: str) -> None:
        """Add contents that cannot be expressed: `group` is "metrics", "evals" or "fields"."""
        kinds = self.lost.setdefault(group, {})
        kinds[kind] = kinds.get(kind, 0) + 1

    def errors(self) -> Iterator[str]:
        """Finished sentences."""
        yield from map(_sentence, self.wrong.items())

    def remarks(self) -> Iterator[str]:
        """Finished sentences."""
        yield from map(_sentence, self.notes.items())

    def losses(self, name: str) -> Iterator[str]:
        """Finished sentences on contents that this format cannot express."""
        for group, kinds in self.lost.items():
            listed = ", ".join(f"{kind} ({count})" for kind, count in list(kinds.items())[:SHOWN])
            more = f" and {len(kinds) - SHOWN} more" if len(kinds) > SHOWN else ""
            what = {"evals": "details of evals", "fields": "fields", "metrics": "metrics"}[group]
            yield f"not expressed in {name}, {what} (and how often): {listed}{more}."


def _count(kinds: dict[str, list[Any]], text: str, where: str) -> None:
    count = kinds.setdefault(text, [0, where])
    count[0] += 1


def _sentence(item: tuple[str, list[Any]]) -> str:
    text, (count, where) = item
    often = "once" if count == 1 else f"{count} times, first"
    return f"{text} ({often} in {where})."


def losses(record: Mapping[str, Any], again: Mapping[str, Any], report: ConversionReport) -> None:
    """Report the contents of a record that are lost when it is written and read back."""
    metrics = again.get("metrics") or {}
    for name, value in (record.get("metrics") or {}).items():
        if metrics.get(name) != value:
            report.lose("metrics", name)
    entries = {entry.get("metric"): entry for entry in again.get("evals") or ()}
    for entry in record.get("evals") or ():
        other = entries.get(entry.get("metric"))
        if other is None:
            if entry.get("value") is None:
                report.lose("evals", f"entry of {entry.get('metric')} without a value")
            continue
        for path in _lost(entry, other):
            report.lose("evals", path)
    fields = {key: value for key, value in record.items() if key not in RESULTS}
    for path in _lost(fields, again):
        report.lose("fields", path)


def _lost(have: Mapping[str, Any], other: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Dotted paths of fields that `other` lacks or that differ there; lists are compared whole."""
    for key, value in have.items():
        if isinstance(value, Mapping) and value:
            there = other.get(key)
            yield from _lost(value, there if isinstance(there, Mapping) else {}, f"{above}{key}.")
        elif value not in ({}, []) and (key not in other or other[key] != value):
            yield f"{above}{key}"
