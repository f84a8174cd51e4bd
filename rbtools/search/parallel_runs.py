"""The runs of a search over a table, spread over processes in shares that do not depend on their number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rbtools.execution.engine import Job, JobFunction, engine_for
from rbtools.execution.run import Run
from rbtools.search import driver
from rbtools.search.search_space import SearchSpace

SHARE = 10
"""Runs that advance in lockstep in one process."""


@dataclass(frozen=True)
class ParallelRuns(JobFunction):
    """Some runs of a search, as a job: the record names them, the result has their traces."""

    algorithm: Any
    field: SearchSpace
    known: Mapping[Any, driver.Value]
    rules: driver.Rules
    seed: int
    objectives: int

    def values(self, indices: Iterable[int]) -> dict[Any, driver.Value]:
        """The values of these architectures, by key."""
        return {key: self.known[key] for key in map(self.field.key, indices)}

    def __call__(self, task: dict[str, Any], run: Run) -> dict[str, Any]:
        traces = driver.search(
            self.algorithm,
            self.field,
            self.values,
            self.rules,
            seed=self.seed,
            runs=task["runs"],
            objectives=self.objectives,
        )
        return {"traces": traces}


def search(work: ParallelRuns, runs: int, run: Run) -> list[driver.Trace]:
    """All runs from 0 on, in `run.placement.jobs` processes; in this one if that is 1."""
    shares = [list(range(start, min(start + SHARE, runs))) for start in range(0, runs, SHARE)]
    traces: dict[int, list[driver.Trace]] = {}
    with engine_for([work], run, at_most=len(shares)) as engine:
        for place, report in engine.map(Job(work, {"runs": share}) for share in shares):
            traces[place] = report.value(run)["traces"]
            run.report.progress(f"{len(traces)} of {len(shares)} shares of the runs are done")
    return [trace for place in range(len(shares)) for trace in traces[place]]
