"""The errors, notes and losses of a conversion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rbtools.formats.base import RESULTS
from rbtools.records import results

SHOWN = 8  # maximum number of kinds in one line


class ConversionReport:
    """The places where each kind of message occurred. `wrong` contains invalid contents of a file, and
    `notes` harmless but unexpected contents. `lost` counts the contents that the target format cannot
    express. `ours` is true if units were created from records, so that their scale is certain.
    """

    def __init__(self, *, ours: bool = False) -> None:
        self.ours = ours
        self.wrong: dict[str, list[str]] = {}
        self.notes: dict[str, list[str]] = {}
        self.lost: dict[str, Counter[str]] = {
            group: Counter() for group in ("metrics", "details of evals", "fields")
        }

    def error(self, problem: str, where: str) -> None:
        """Add a message about contents that could not be read; `problem` is a clause without a full stop."""
        self.wrong.setdefault(problem, []).append(where)

    def note(self, notify: str, where: str) -> None:
        """Add a message about something harmless; `notify` is a clause without a full stop."""
        self.notes.setdefault(notify, []).append(where)

    def errors(self) -> Iterator[str]:
        yield from map(_sentence, self.wrong.items())

    def remarks(self) -> Iterator[str]:
        yield from map(_sentence, self.notes.items())

    def losses(self, name: str) -> Iterator[str]:
        for group, kinds in self.lost.items():
            if kinds:
                listed = ", ".join(f"{kind} ({count})" for kind, count in list(kinds.items())[:SHOWN])
                more = f" and {len(kinds) - SHOWN} more" if len(kinds) > SHOWN else ""
                yield f"{name} has no place for these {group} (and how often): {listed}{more}."


def _sentence(item: tuple[str, list[str]]) -> str:
    text, places = item
    often = "once" if len(places) == 1 else f"{len(places)} times, first"
    return f"{text} ({often} in {places[0]})."


def losses(record: Mapping[str, Any], again: Mapping[str, Any], report: ConversionReport) -> None:
    """Report the contents of a record that are lost if the record is written and then read again."""
    metrics, details = again.get("metrics") or {}, report.lost["details of evals"]
    report.lost["metrics"].update(
        name for name, value in (record.get("metrics") or {}).items() if metrics.get(name) != value
    )
    entries = results.by_metric(again)
    for entry in record.get("evals") or ():
        if (other := entries.get(entry.get("metric"))) is not None:
            details.update(_lost({**entry, "answers": {}}, other))  # tables do not contain single images
        elif entry.get("value") is None:
            details[f"entry without a value for {entry.get('metric')}"] += 1
    fields = {key: value for key, value in record.items() if key not in RESULTS}
    report.lost["fields"].update(_lost(fields, again))


def _lost(have: Mapping[str, Any], other: Mapping[str, Any], above: str = "") -> list[str]:
    """Dotted paths of the fields that `other` lacks or changes; a list is compared as a single value."""
    lost = []
    for key, value in have.items():
        if isinstance(value, dict) and value:
            there = other.get(key)
            lost += _lost(value, there if isinstance(there, dict) else {}, f"{above}{key}.")
        elif (key not in other or other[key] != value) and value not in ({}, []):
            lost.append(f"{above}{key}")
    return lost
