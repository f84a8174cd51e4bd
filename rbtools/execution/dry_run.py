"""A dry run: how many evaluations and trainings the store has, and how many are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from rbtools.errors import Pending
from rbtools.store import Store, digest


@dataclass
class DryRun:
    """What the store lacks for a run.

    missing: by the keys of results that are computed together, what computes them. waiting: the jobs, by
    number, whose network is not trained yet: their evaluations count as missing.
    """

    store: Store
    missing: dict[tuple[str, ...], str] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    job: int = 0

    def untrained(self) -> str:
        """A name for the checkpoint that the network of this job will have; the store has none of that
        name."""
        self.waiting.add(self.job)
        return f"sha256:{digest({'untrained': self.job})}"

    def each(self, calls: Iterable[Callable[[], Any]]) -> None:
        """Note everything that is missing for one record, then raise Pending for the first of it."""
        missed = []
        for call in calls:
            try:
                call()
            except Pending as pending:
                missed.append(pending)
        if missed:
            raise missed[0]

    def event(self) -> dict[str, Any]:
        """The report for programs."""
        return {"event": "plan", "found": self.store.found, "missing": len(self.missing)}

    def words(self, records: int, stored: int, missing: int) -> list[str]:
        """The report, as lines."""
        lines = [f"dry run, nothing was computed: of {_many(records, 'record')} {stored} found in the store"]
        lines[0] += f", {missing} to compute." if missing else "."
        lines += [f"{title}: {count} to compute." for title, count in Counter(self.missing.values()).items()]
        if self.waiting:
            lines.append(f"{_many(len(self.waiting), 'record')} would first be trained.")
        return lines


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
