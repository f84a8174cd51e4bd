"""Dry runs, which count the evaluation tiles and the training runs that are missing in the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, TypeVar

from rbtools.errors import Pending
from rbtools.execution.report import in_words
from rbtools.store import Store, digest

T = TypeVar("T")
# The usual share of the largest time, because broken images are left out (AutoAttack on a ResNet-18).
USUAL_SHARE = 0.3


class Lacking(NamedTuple):
    """A computation whose result is missing in the store: its title, the number of its units ("tile",
    "training"), and the usual and the largest number of seconds that it takes, if they are known."""

    title: str
    number: int
    unit: str
    seconds: tuple[float, float] | None = None


@dataclass
class DryRun:
    """Collects the work of a run whose results are missing in the store.

    `missing` maps keys to this work; results of several records may share a key. `waiting` contains the
    numbers of the jobs whose network is not trained yet; their evaluations count as missing. `paces` maps
    each model to the seconds that a forward pass takes per image, measured on one batch.
    """

    store: Store
    missing: dict[str, Lacking] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    paces: dict[str, float] = field(default_factory=dict)
    job: int = 0

    def lacks(
        self,
        key: str,
        title: str,
        count: int = 1,
        unit: str = "tile",
        seconds: tuple[float, float] | None = None,
    ) -> NoReturn:
        """Add missing work to the report. Raises Pending."""
        self.missing[key] = Lacking(title, count, unit, seconds)
        raise Pending("A dry run computes nothing.")

    def untrained(self) -> str:
        """A placeholder for the name of the checkpoint that this job will train."""
        self.waiting.add(self.job)
        return f"sha256:{digest({'untrained': self.job})}"

    def each(self, calls: Iterable[Callable[[], T]]) -> list[T]:
        """Return the results of calls. Pending is raised only after all calls, so the report is complete."""
        found, missed = [], []
        for call in calls:
            try:
                found.append(call())
            except Pending as pending:
                missed.append(pending)
        if missed:
            raise missed[0]
        return found

    def _units_by_title(self) -> dict[tuple[str, str], int]:
        counts: dict[tuple[str, str], int] = {}
        for title, number, unit, _ in filter(lambda one: one.number, self.missing.values()):
            counts[title, unit] = counts.get((title, unit), 0) + number
        return counts

    def _seconds(self, title: str) -> tuple[float, float] | None:
        """The usual and the largest time of the missing work with this title, in seconds, if known."""
        seconds = [one.seconds for one in self.missing.values() if one.title == title and one.number]
        known = [one for one in seconds if one is not None]
        if not known or len(known) < len(seconds):
            return None
        return sum(usual for usual, _ in known), sum(most for _, most in known)

    def event(self) -> dict[str, Any]:
        """The report as an event for programs."""
        stages: list[dict[str, Any]] = []
        for (what, unit), count in self._units_by_title().items():
            seconds = self._seconds(what)
            most = {} if seconds is None else {"most_seconds": round(seconds[1], 1)}
            stages.append({"what": what, unit: count, **most})
        return {"event": "plan", "found": self.store.found, "missing": len(self.missing), "stages": stages}

    def words(self, records: int, stored: int, missing: int) -> list[str]:
        """The report as lines of text."""
        lines = [f"dry run, nothing was computed: of {_many(records, 'record')} {stored} found in the store"]
        lines[0] += f", {missing} to compute." if missing else "."
        for (title, unit), count in self._units_by_title().items():
            time, seconds = "", self._seconds(title)
            if seconds is not None:
                time = f", {' to '.join(dict.fromkeys(map(in_words, seconds)))} here"
            lines.append(f"{title}: {_many(count, unit.replace('tile', 'batch'))} to compute{time}.")
        if self.waiting:
            lines.append(f"{_many(len(self.waiting), 'record')} would first be trained.")
        return lines


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{('es' if noun.endswith('ch') else 's') * (count != 1)}"
