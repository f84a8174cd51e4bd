"""Divides the runs of a search into shares, which do not depend on the number of processes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from rbtools.execution.engine import Call, engine_for
from rbtools.execution.run import Run
from rbtools.search import driver
from rbtools.search.result_table import ResultTable
from rbtools.search.search_space import SearchSpace

SHARE = 10  # runs that one call makes


@dataclass(frozen=True)
class RunsCall(Call):
    """Performs the search runs with these numbers. `known` contains all values of the table."""

    algorithm: driver.Algorithm
    field: SearchSpace
    known: Mapping[Hashable, driver.Value]
    rules: driver.Rules
    runs: Sequence[int]
    arch = None

    def __call__(self, run: Run) -> list[driver.Trace]:
        return driver.search(self.algorithm, self.field, lambda _: self.known, self.rules, self.runs)


def search(
    algorithm: driver.Algorithm, table: ResultTable, rules: driver.Rules, runs: int, run: Run
) -> list[driver.Trace]:
    """Returns the traces of `runs` searches in a table, which run in `run.placement.jobs` processes."""
    shares = [
        RunsCall(algorithm, table.field, table.known, rules, range(runs)[start : start + SHARE])
        for start in range(0, runs, SHARE)
    ]
    traces: dict[int, list[driver.Trace]] = {}
    with engine_for([], run, at_most=len(shares)) as engine:
        for place, report in engine.map(shares):
            traces[place] = report.value(run)
            run.report.progress(f"{len(traces)} of {len(shares)} shares of the runs are done")
    return [trace for place in range(len(shares)) for trace in traces[place]]
