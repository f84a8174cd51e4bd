"""A dry run: counts the tiles of evaluations and the training runs that the store lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, TypeVar

from rbtools.errors import Pending
from rbtools.store import Store, digest

T = TypeVar("T")


class Lacking(NamedTuple):
    """The title of a computation that the store lacks, and the number of its units ("tile", "training")."""

    title: str
    number: int
    unit: str


@dataclass
class DryRun:
    """Collects the work that the store lacks for a run.

    `missing` maps keys to this work; results of several records may share a key. `waiting` contains the
    numbers of the jobs whose network is not trained yet; their evaluations count as missing.
    """

    store: Store
    missing: dict[str, Lacking] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    job: int = 0

    def lacks(self, key: str, title: str, count: int = 1, unit: str = "tile") -> NoReturn:
        """Add missing work to the report. Raises Pending."""
        self.missing[key] = Lacking(title, count, unit)
        raise Pending("A dry run computes nothing.")

    def untrained(self) -> str:
        """A name for the checkpoint that this job's network will have. The store has no file of this name."""
        self.waiting.add(self.job)
        return f"sha256:{digest({'untrained': self.job})}"

    def each(self, calls: Iterable[Callable[[], T]]) -> list[T]:
        """The results of calls. All calls are made before Pending is raised: the report is then complete."""
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
        for title, number, unit in filter(lambda one: one.number, self.missing.values()):
            counts[title, unit] = counts.get((title, unit), 0) + number
        return counts

    def event(self) -> dict[str, Any]:
        """The report as an event for programs."""
        stages = [{"what": what, unit: count} for (what, unit), count in self._units_by_title().items()]
        return {"event": "plan", "found": self.store.found, "missing": len(self.missing), "stages": stages}

    def words(self, records: int, stored: int, missing: int) -> list[str]:
        """The report as lines of text."""
        lines = [f"dry run, nothing was computed: of {_many(records, 'record')} {stored} found in the store"]
        lines[0] += f", {missing} to compute." if missing else "."
        for (title, unit), count in self._units_by_title().items():
            lines.append(f"{title}: {_many(count, unit)} to compute.")
        if self.waiting:
            lines.append(f"{_many(len(self.waiting), 'record')} would first be trained.")
        return lines


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{('es' if noun.endswith('ch') else 's') * (count != 1)}"
