"""Engines, which run calls in this process, in worker processes or on a cluster (`execution.ENGINES`)."""

from __future__ import annotations

import functools
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rbtools.errors import Pending, RbError, is_foreign, of_network, of_own_code
from rbtools.execution import ENGINES, LOCAL
from rbtools.execution.report import Report, discard
from rbtools.execution.run import Run

_POLL_SECONDS = 0.5
_AHEAD = 4  # calls for each worker that are submitted before the first is done


class JobFunction:
    """The work for each record, in a form that can be sent to other processes. Subclasses are dataclasses.

    `divided` is true if the work for one record is divided into tiles that the workers of `run.pool` share.
    """

    divided: ClassVar[bool] = False

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        raise NotImplementedError

    def reads(self, run: Run) -> tuple[str, ...]:
        """The splits of the data set of `--dataset` that the work reads for every record."""
        return ()


class Call:
    """A unit of work for an engine, in a form that can be sent to other processes. It is called with the run
    of the process that does the work. `arch` is the architecture, which determines the number of threads."""

    arch: Any

    def __call__(self, run: Run) -> Any:
        raise NotImplementedError

    @property
    def work(self) -> Callable[[Run], Any]:
        return self


@dataclass(frozen=True)
class Job(Call):
    """A call of a function on a record."""

    function: JobFunction
    record: dict[str, Any]

    @property
    def arch(self) -> Any:
        return self.record.get("arch")

    @property
    def work(self) -> Callable[[Run], Any]:
        return functools.partial(self.function, self.record)


class Unfinished(BaseException):
    """Raised if a job is interrupted when it has a partial result; `__cause__` is the interruption."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


@dataclass
class JobReport:
    """The result of a call, or the reason why it failed, and statistics on its use of the store.

    `found` and `computed` are the numbers of results that were read from the store and that were computed.
    `pending` is true if a dry run found work to do. `seconds` is the wall-clock time, and `stages` contains
    the time spent in each stage. `damaged` lists files of the store that could not be read. `trouble` is the
    reason why results could not be stored. `remarks` are the messages of a worker, which cannot print them
    itself. `interruption` is the exception that ended the job early with a partial result.
    """

    result: Any = None
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
    interruption: BaseException | None = None

    def value(self, run: Run) -> Any:
        """Print the remarks, and return the result. Raises CallFailed if the call failed."""
        for remark in self.remarks:
            run.report.notify(remark)
        for stage, seconds in self.stages.items():
            run.report.clock.seconds[stage] = run.report.clock.seconds.get(stage, 0.0) + seconds
        if self.problem is not None:
            raise CallFailed(self.problem, self.trace)
        return self.result


class CallFailed(RbError):
    """Raised if a call fails in a worker. If the reason is a bug, `trace` is the traceback."""

    def __init__(self, problem: str, trace: str | None) -> None:
        super().__init__(problem)
        self.trace = trace


def run_job(call: Call, run: Run) -> JobReport:
    """Run a call. If it fails, the report contains a message, and for a bug in rbtools also the traceback."""
    report = JobReport()
    if run.report.notify is discard:
        run = run.changed(notify=report.remarks.append)
    store = run.store
    before = store.found, store.computed, len(store.damaged)
    start = time.perf_counter()
    run.report.clock.seconds.clear()
    if run.plan is not None:
        run.plan.job += 1
    try:
        report.result = call.work(run)
    except Pending:
        report.pending, report.result = True, getattr(call, "record", None)
    except Unfinished as stop:
        report.result, report.interruption = stop.result, stop.__cause__
    except CallFailed as failed:
        report.problem, report.trace = str(failed), failed.trace
    except RbError as wrong:
        report.problem = str(wrong)
    except MemoryError:
        report.problem = (
            "Memory ran out. Use fewer --jobs, a smaller --batch (rb-train: --batch-size), or stream the data"
            " (RB_IMAGE_MEMORY=0)."
        )
    except BaseException as bug:
        if not isinstance(bug, Exception) and not is_foreign(bug):
            raise
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


class Engine:
    """Runs calls. Each call receives the run of the process that executes it.

    An engine is a context manager. Leaving it stops running calls; finished work stays in the store.
    Subclasses define `submit`, start their workers on entry and stop them on exit, pass on the messages of
    workers with `post`, and repeat the call of a lost worker.

    A worker receives a pickled copy of the run without its callbacks, and sets its own callbacks. `worker` is
    the number of the worker on its machine, which selects a GPU, and `jobs` is the number of workers on that
    machine.

    `capacity` is the number of calls that can run at once; it is known after entering. `own_capacity` is true
    if the engine chooses this number when `--jobs` is not given; `jobs` is then 0, but at least 1 in a
    worker. `in_process` is true if `submit` returns only when the call has ended. `status` formats the
    progress of a call for the status line.
    """

    own_capacity: ClassVar[bool] = False
    in_process: ClassVar[bool] = False

    def __init__(self, run: Run) -> None:
        self.run = run
        self.capacity = max(run.placement.jobs, 1)
        self.status: Callable[[str, Call], str] = lambda text, call: text
        self._messages: deque[Callable[[Report], None]] = deque()
        self._arrived = threading.Event()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def submit(self, call: Call) -> Future[JobReport]:
        """Run a call as soon as a worker is free."""
        raise NotImplementedError

    def post(self, tell: Callable[[Report], None]) -> None:
        """Have the thread that calls `wait` call `tell` with the run's report. Any thread may call `post`."""
        self._messages.append(tell)
        self.wake()

    def wake(self, _: object = None) -> None:
        """Make `wait` return. Any thread may call this method."""
        self._arrived.set()

    def wait(self) -> None:
        """Wait at most half a second for an event; then check for cancellation and pass on messages."""
        self._arrived.wait(_POLL_SECONDS)
        self._arrived.clear()
        self.run.report.check_cancelled()
        for _ in range(len(self._messages)):
            self._messages.popleft()(self.run.report)

    def map(
        self, calls: Iterable[Call], check: Callable[[], None] = discard
    ) -> Iterator[tuple[int, JobReport]]:
        """Yields the number of each call and its report, in the order in which the calls end. While waiting,
        it calls `wait` and `check`, which raise an exception if the work should stop."""
        flying: dict[Future[JobReport], int] = {}
        most = 1 if self.in_process else _AHEAD * self.capacity
        waiting: Iterator[tuple[int, Call]] | None = iter(enumerate(calls))
        try:
            while waiting is not None or flying:
                while waiting is not None and len(flying) < most:
                    number, call = next(waiting, (0, None))
                    if call is None:
                        waiting = None
                        break
                    future = self.submit(call)
                    flying[future] = number
                    future.add_done_callback(self.wake)
                done = [future for future in flying if future.done()]
                for future in done:
                    yield flying.pop(future), future.result()
                if flying and not done:
                    self.wait()
                    check()
        finally:  # nobody waits for the remaining calls
            for future in flying:
                future.cancel()


class InProcess(Engine):
    """Runs each call inside `submit`, in the calling thread."""

    in_process = True

    def submit(self, call: Call) -> Future[JobReport]:
        future: Future[JobReport] = Future()
        future.set_result(run_job(call, self.run))
        return future


def engine_for(functions: Sequence[JobFunction], run: Run, at_most: int | None = None) -> Engine:
    """The engine that `run.placement` specifies. Raises RbError if there is no such engine.

    `at_most` is the number of jobs, if known. A single job that is not divided needs no worker process.
    """
    divided = any(function.divided for function in functions)
    if run.placement.engine == LOCAL and (run.placement.jobs <= 1 or (at_most == 1 and not divided)):
        return InProcess(run)
    return ENGINES.load(run.placement.engine)(run)
