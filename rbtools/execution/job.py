"""One job: a function applied to a record, and the report of its result."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rbtools.errors import Pending, RbError, of_network, of_own_code
from rbtools.execution.run import Run
from rbtools.report import discard


class JobFunction:
    """The work on each record, as a value that can be sent to other processes. Subclasses are dataclasses.

    `divisible`: several processes can share the work on one record (`Run.divide`). `in_turn`: jobs can
    take turns in a process, since they pass on between steps (`turns.pass_on`). `follows`: the job waits for
    that of the function so many places before it, which stores its result too; 0 is none.
    """

    divisible: ClassVar[bool] = False
    follows: int = 0

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def with_run(self, run: Run) -> JobFunction:
        """The function with the run of the current process."""
        return self

    @property
    def in_turn(self) -> bool:
        return False

    def preload(self) -> None:
        """Import what the work takes, once for all workers. No device may be used."""


@dataclass
class JobReport:
    """The result of a job or why there is none, and how the store was used.

    found, computed: how many results came from the store and how many were computed. pending: a dry run found
    work to do; the result is the record up to there. seconds: wall-clock time of the job; stages: of its
    stages. damaged: files of the store that could not be read. trouble: why results could not be stored.
    remarks: messages of a worker that has no terminal.
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


def run_job(function: JobFunction, record: dict[str, Any], run: Run) -> JobReport:
    """Run a job. User errors, also those of their network, become a message; others keep their traceback."""
    report = JobReport()
    if run.report.notify is discard:
        run = run.changed(notify=report.remarks.append)
    store = run.store
    before = store.found, store.computed, len(store.damaged)
    start = time.perf_counter()
    run.report.clock.seconds.clear()
    try:
        report.result = function.with_run(run)(record)
    except Pending as pending:
        report.pending, report.result = True, record
        if run.plan:
            run.plan.waiting += pending.waiting
    except RbError as wrong:
        report.problem = str(wrong)
    except MemoryError:
        report.problem = (
            "Memory ran out. Use fewer --jobs, a smaller --batch (rb-train: --batch-size), or stream the data"
            " (RB_IMAGE_MEMORY=0)."
        )
    except Exception as bug:
        report.problem = of_network(bug) or of_own_code(bug)
        if report.problem is None:
            report.problem = f"{type(bug).__name__}: {bug} (a bug in rbtools; see the traceback)"
            report.trace = traceback.format_exc()
    report.seconds = time.perf_counter() - start
    report.stages = dict(run.report.clock.seconds)
    report.found, report.computed = store.found - before[0], store.computed - before[1]
    report.damaged = [str(path) for path in store.damaged[before[2] :]]
    report.trouble, store.trouble = store.trouble, None
    return report
