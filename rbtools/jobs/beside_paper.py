"""Shows the results that a paper reports next to the results of one network, for a preset of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rbtools.execution.engine import JobFunction
from rbtools.execution.run import Run
from rbtools.jobs import SplitJob
from rbtools.registry import hooks


@dataclass(frozen=True)
class BesidePaper(SplitJob):
    job: JobFunction
    preset: str

    def reads(self, run: Run) -> tuple[str, ...]:
        return self.job.reads(run)

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        record = self.job(record, run)
        for lines in hooks("printed-rows") if run.plan is None else ():
            for line in lines(self.preset, record):
                run.report.notify(line)
        return record
