"""Executors run jobs in this process, in worker processes, or on a cluster.

An engine is a subclass of `Executor` in a module of its own and a line of `rbtools.execution.ENGINES`.
"""

from __future__ import annotations

import itertools
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from rbtools.errors import Pending, RbError, is_foreign, of_network, of_own_code
from rbtools.execution import ENGINES, LOCAL
from rbtools.execution.run import Run
from rbtools.records import Line
from rbtools.report import discard

_POLL_SECONDS = 0.5


class JobFunction:
    """The work on each record, as a value that can be sent to other processes. Subclasses are dataclasses.

    `divisible`: several processes can share the work on one record (`Run.divide`).
    """

    divisible: ClassVar[bool] = False

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def with_run(self, run: Run) -> JobFunction:
        """The function with the run of the current process."""
        return self

    def splits(self) -> tuple[str, ...]:
        """The splits of the data set of `--dataset` that the work reads, whichever record it gets."""
        return ()


class Unfinished(BaseException):
    """A job was interrupted that has a result as it stands; `__cause__` is the interruption."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


@dataclass
class JobReport:
    """The result of a job or the reason for its failure, and its use of the store.

    found, computed: how many results came from the store and how many were computed. pending: a dry run found
    work to do; the result is the record up to there. seconds: wall-clock time of the job; stages: of its
    stages. damaged: files of the store that could not be read. trouble: the reason why results could not be
    stored.
    remarks: messages of a worker that has no terminal. interruption: what ended the job early; the result is
    as it stands, and the run ends once it is written.
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
    interruption: BaseException | None = None


class Job(NamedTuple):
    """A record for one of an executor's functions, and its place in the output.

    A job with a negative place computes batches of another one's evaluation: nobody waits for its result.
    """

    place: int
    function: int
    record: dict[str, Any]


class Finished(NamedTuple):
    """The report of a job that has ended."""

    place: int
    report: JobReport


class Progress(NamedTuple):
    """The status text of a running job, and the job's place, if known."""

    text: str
    place: int | None = None


class Notice(NamedTuple):
    """A message for people; a warning, such as that a worker was lost, or not."""

    text: str
    warning: bool = True


class LineRead(NamedTuple):
    """A line that a thread has read for the owner of the executor; None at the end of the input."""

    line: Line | None


Event = Finished | Progress | Notice | LineRead | dict[str, Any]
"""What an executor reports; a dict is an event for programs (`run.report.event`)."""


def run_job(function: JobFunction, record: dict[str, Any], run: Run) -> JobReport:
    """Run a job. User errors, also those of their network, become a message; others keep their traceback."""
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
        report.result = function.with_run(run)(record)
    except Pending:
        report.pending, report.result = True, record
    except Unfinished as stop:
        report.result, report.interruption = stop.result, stop.__cause__
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


def run_on(job: Job, functions: Sequence[JobFunction], run: Run) -> JobReport:
    """Run a job with the run of the current process."""
    return run_job(functions[job.function], job.record, run)


class Executor:
    """Runs jobs: each is one of `functions` applied to a record.

    Use as a context manager: leaving it stops running jobs; finished work stays in the store. Subclasses
    define `submit` (in a worker `run_on` does the work), start and end their workers on entering and leaving,
    and report by `post`. They retry the job of a lost worker themselves.

    A worker gets a pickled copy of the run: its callbacks are lost and set anew there, `worker` is its number
    on its machine, which chooses a GPU, and `jobs` is how many share the cores of that machine.

    `capacity` is how many jobs run at once, known after entering. `own_capacity`: the engine itself decides
    how many where `--jobs` does not say; `jobs` is 0 then, but in a worker 1 or more. `in_process`: `submit`
    returns when the job has ended. `last` is the event that was read last; after an interruption it may be
    unhandled, or arrive again. `status` formats a job's progress for the status line.
    """

    own_capacity: ClassVar[bool] = False
    in_process: ClassVar[bool] = False

    def __init__(self, functions: Sequence[JobFunction], run: Run) -> None:
        self.functions, self.run = functions, run
        self.capacity = max(run.placement.jobs, 1)
        self.last: Event | BaseException | None = None
        self.status: Callable[[Progress], str] = lambda progress: progress.text
        self._events: deque[Event | BaseException] = deque()
        self._arrived = threading.Event()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def submit(self, job: Job) -> None:
        """Submit a job; it runs as soon as there is room for it."""
        raise NotImplementedError

    def post(self, event: Event | BaseException) -> None:
        """Add an event, from any thread. An exception is raised where events are read."""
        self._events.append(event)
        self._arrived.set()

    def events(self) -> Iterator[Finished | LineRead]:
        """Endlessly yields finished jobs and lines as they come: the only loop over an executor's events.

        Progress and notices go to the run's callbacks. Between events, and at least twice a second, it calls
        `check_cancelled`.
        """
        while True:
            self._arrived.wait(_POLL_SECONDS)
            self._arrived.clear()
            self.run.report.check_cancelled()
            for event in self.ready():
                yield event
                self.run.report.check_cancelled()

    def ready(self) -> Iterator[Finished | LineRead]:
        """The events that have arrived."""
        for _ in range(len(self._events)):
            # kept before it is removed, so that an interruption loses no event
            event = self.last = self._events[0]
            self._events.popleft()
            if isinstance(event, BaseException):
                raise event
            if isinstance(event, Notice):
                (self.run.report.warn if event.warning else self.run.report.notify)(event.text)
            elif isinstance(event, Progress):
                self.run.report.progress(self.status(event))
            elif isinstance(event, dict):
                self.run.report.event(event)
            else:
                yield event

    def map(self, records: Iterable[dict[str, Any]]) -> Iterator[Finished]:
        """Put the records through the first function; their places are those of the records."""
        count = 0
        for count, record in enumerate(records, 1):
            self.submit(Job(count - 1, 0, record))
        finished = (event for event in self.events() if isinstance(event, Finished))
        yield from itertools.islice(finished, count)


class InProcessExecutor(Executor):
    """Runs each job inside `submit`, in the calling thread."""

    in_process = True

    def submit(self, job: Job) -> None:
        report = run_job(self.functions[job.function], job.record, self.run)
        self.post(Finished(job.place, report))


def executor_for(functions: Sequence[JobFunction], run: Run, at_most: int | None = None) -> Executor:
    """The executor that `run.placement.engine` and `run.placement.jobs` ask for.

    `at_most` is the number of jobs, if known: a single job needs no worker process, unless it can be divided.
    Raises RbError for an engine that does not exist.
    """
    divided = run.placement.divide and any(function.divisible for function in functions)
    if run.placement.engine == LOCAL and (run.placement.jobs <= 1 or (at_most == 1 and not divided)):
        return InProcessExecutor(functions, run)
    executor: Executor = ENGINES.load(run.placement.engine)(functions, run)
    return executor
