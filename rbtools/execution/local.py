"""Worker processes on this machine: several records at a time.

Each worker is a process with a pipe, forked from one that has imported what they need (`fork_server`); a
thread of this process listens to it. When a worker dies, its record is retried; a worker whose parent has
ended ends itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from rbtools.execution import device, resources
from rbtools.execution.context import RunContext
from rbtools.execution.executor import Executor, Finished, Grown, Job, Notice, Progress, run_on
from rbtools.execution.fork_server import ForkServer
from rbtools.execution.job import JobFunction, JobReport
from rbtools.execution.workers_per_gpu import WorkersPerGPU

if TYPE_CHECKING:
    from types import FrameType


_SECONDS_TO_END_ALONE = 10.0
_SECONDS_BETWEEN_PROGRESS = 0.2
TRIES = 2


class _Fits(NamedTuple):
    """How many workers have room on a GPU, by what one of them took."""

    workers: int


class _Worked(NamedTuple):
    """How many images a worker has done since it said so last."""

    images: int


class LocalExecutor(Executor):
    """`run.jobs` worker processes on this machine; with `run.gpus` as many as are fastest (WorkersPerGPU)."""

    def __init__(self, functions: Sequence[JobFunction], run: RunContext) -> None:
        super().__init__(functions, run)
        self._jobs: queue.SimpleQueue[tuple[Job, int] | None] = queue.SimpleQueue()
        self._ending = threading.Event()
        self._starting, self._growing, self._sharing_lock = (threading.Lock() for _ in range(3))
        self._server: ForkServer | None = None
        self._pids: dict[int, int] = {}
        self._threads: list[threading.Thread] = []
        self._sharing = WorkersPerGPU(run.gpus)

    @property
    def most(self) -> int:
        return resources.most_workers(self.run)

    def __enter__(self) -> LocalExecutor:
        with contextlib.suppress(Exception):  # the first job tries again, and says what is wrong
            self._server = self._started_server()
        self._resize(self.capacity)
        return self

    def _resize(self, capacity: int) -> None:
        """Let so many workers take jobs, or as many as there may be; one too many ends after its job."""
        with self._growing:
            self.capacity = min(capacity, self.most)
            for number in range(len(self._threads), self.capacity):
                if self._ending.is_set():
                    return
                self._threads.append(threading.Thread(target=self._serve, args=(number,), daemon=True))
                self._threads[-1].start()

    def _started_server(self) -> ForkServer:
        work = partial(_work, list(self.functions), self.run)
        return ForkServer(work, partial(_preload, list(self.functions) if self.preload else ()))

    def submit(self, job: Job) -> None:
        """Queue a job; the first free worker takes it."""
        self._jobs.put((job, 1))

    def __exit__(self, *error: object) -> None:
        with self._growing:
            self._ending.set()
        for _thread in self._threads:
            self._jobs.put(None)
        if self._server is not None:
            self._server.end()

    def _serve(self, number: int) -> None:
        """Pass jobs to one worker process, which is replaced when it dies."""
        connection: Connection | None = None
        while (item := self._jobs.get()) is not None and not self._ending.is_set():
            if number >= self.capacity:
                self._jobs.put(item)
                break
            job, tries = item
            try:
                connection = connection or self._start(number)
                if connection is None:
                    return
            except Exception as error:  # no process, no memory, no file handle: the job fails
                problem = f"No worker process could be started: {error}. Use fewer --jobs."
                self.post(Finished(job.place, JobReport(problem=problem)))
                continue
            try:
                connection.send(job)
                self.post(Finished(job.place, self._listen(connection, number, job.place)))
            except (EOFError, OSError):
                connection.close()
                connection = None
                if not self._ending.is_set():
                    self._died(number, job, tries)
        if connection is not None:
            connection.close()

    def _listen(self, connection: Connection, number: int, place: int) -> JobReport:
        """Post the progress of a worker until its job has ended."""
        while True:
            message = connection.recv()
            if isinstance(message, JobReport):
                return message
            if isinstance(message, _Fits):
                self._sharing.most = min(message.workers, self.most // self.run.gpus)
            elif isinstance(message, _Worked):
                self._share(number, place, message.images)
            else:
                self.post(message)

    def _share(self, number: int, place: int, images: int) -> None:
        """Have more workers on each GPU or fewer, where what they have done says so."""
        with self._sharing_lock:
            if not self._sharing.report(number, place, images, time.monotonic()):
                return
            self._resize(self._sharing.count * self.run.gpus)
            self.post(Grown(self.capacity))
            if self._sharing.settled:
                self.post(Notice(self._sharing.words(), warning=False))
                self.post({"event": "workers", **self._sharing.facts()})

    def _start(self, number: int) -> Connection | None:
        """The connection to a new worker; None if the executor is ending."""
        with self._starting:  # from here on no server starts that nobody would end
            if self._ending.is_set():
                return None
            if self._server is None or not self._server.is_alive():
                self._server = self._started_server()
            connection, self._pids[number] = self._server.fork(number)
        return connection

    def _died(self, number: int, job: Job, tries: int) -> None:
        """Try the job of a dead worker again, or report that it failed."""
        assert self._server is not None
        ending = _ending_in_words(self._server.status(self._pids[number]))
        if tries < TRIES and not job.helps:
            self._jobs.put((job, tries + 1))
            self.post(Notice(f"A worker {ending}; its record is tried again."))
            return
        problem = (
            f"The worker process {ending}, {TRIES} times. If memory ran out, use fewer --jobs"
            " or a smaller --batch (rb-train: --batch-size)."
        )
        self.post(Finished(job.place, JobReport(problem=problem)))


def _ending_in_words(code: int | None) -> str:
    if code is None:
        return "was lost"
    if code < 0:
        names = {int(number): f" ({number.name})" for number in signal.Signals}
        return f"was killed by signal {-code}{names.get(-code, '')}"
    return f"ended with status {code}"


def _preload(functions: Sequence[JobFunction]) -> None:
    for function in functions:
        function.preload()


def _work(functions: Sequence[JobFunction], run: RunContext, connection: Connection, number: int) -> NoReturn:
    """The main function of a worker: jobs in, reports out, until the pipe closes or SIGTERM comes."""
    run = dataclasses.replace(run, worker=number)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    last, place, measured, images, sent = 0.0, 0, not run.gpus, 0, 0.0

    def progress(text: str) -> None:
        nonlocal last
        if time.monotonic() - last > _SECONDS_BETWEEN_PROGRESS:
            last = time.monotonic()
            connection.send(Progress(text, place))

    def measure() -> None:
        nonlocal measured
        if not measured and "torch" in sys.modules:
            workers = device.workers_that_fit()
            if workers is not None:
                measured = True
                connection.send(_Fits(workers))

    def worked(count: int) -> None:
        nonlocal images, sent
        measure()
        images += count
        if run.gpus and time.monotonic() - sent > _SECONDS_BETWEEN_PROGRESS:
            sent = time.monotonic()
            connection.send(_Worked(images))
            images = 0

    run.progress, run.event, run.after_batch = progress, connection.send, worked
    try:
        while True:
            job: Job = connection.recv()
            place, images = job.place, 0
            report = run_on(job, functions, run)
            measure()
            connection.send(report)
    except (EOFError, OSError):
        _leave(0)
    except SystemExit as end:
        _leave(int(end.code or 0))


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _end_with_parent() -> None:
    """End this worker whenever its parent ends: then nobody waits for its results."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)  # the job releases its leases and stores what it has finished
    time.sleep(_SECONDS_TO_END_ALONE)
    os._exit(128 + signal.SIGTERM)


def _leave(status: int) -> NoReturn:
    """Exit without torch's shutdown, which takes seconds on a busy machine."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of the fork server, which ends at the same time
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)
