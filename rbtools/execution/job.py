"""One piece of work on one record, wherever it runs, and what comes back from it."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rbtools.errors import Pending, RbError, of_network
from rbtools.execution.context import RunContext, discard

JobFunction = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass
class JobReport:
    """What became of a record: the result, or why there is none; and how the store was used.

    pending: a dry run found work to do; the result is the record as it came, as far as it got. seconds:
    all of it, by the clock, and by stage. remarks: what people should know, of a worker that cannot say it
    itself.
    """

    result: dict[str, Any] | None = None
    problem: str | None = None
    trace: str | None = None
    found: int = 0
    computed: int = 0
    pending: bool = False
    seconds: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    trouble: str | None = None
    remarks: list[str] = field(default_factory=list)


def run_job(work: JobFunction, record: dict[str, Any], run: RunContext | None) -> JobReport:
    """Do the work. An error of the user's, or of their network, becomes its message; others keep a trace."""
    report = JobReport()
    unheard = run is not None and run.notify is discard
    if run and unheard:
        run.notify = report.remarks.append
    before = (run.store.found, run.store.computed, len(run.store.damaged)) if run else (0, 0, 0)
    start = time.perf_counter()
    if run:
        run.clock.seconds.clear()
    try:
        report.result = work(record)
    except Pending as pending:
        report.pending, report.result = True, record
        if run and run.plan:
            run.plan.waiting += pending.waiting
    except RbError as wrong:
        report.problem = str(wrong)
    except MemoryError:
        report.problem = (
            "Memory ran out. Use fewer --jobs, a smaller --batch (rb-train: --batch-size), or stream the data"
            " (RB_IMAGE_MEMORY=0)."
        )
    except Exception as bug:
        report.problem = of_network(bug)
        if report.problem is None:
            report.problem = f"{type(bug).__name__}: {bug} (a bug in rbtools; see the traceback)"
            report.trace = traceback.format_exc()
    report.seconds = time.perf_counter() - start
    if run:
        report.stages = dict(run.clock.seconds)
        run.notify = discard if unheard else run.notify
        report.found = run.store.found - before[0]
        report.computed = run.store.computed - before[1]
        report.damaged = [str(path) for path in run.store.damaged[before[2] :]]
        report.trouble, run.store.trouble = run.store.trouble, None
    return report
