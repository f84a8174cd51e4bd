"""Worker processes on this machine: several records at a time.

Each worker is a lane of a process, which is forked from one that has imported what they need (`fork_server`)
and does what `worker_process` says; a thread of this process listens to it. When a worker dies, its record
is retried; a worker whose parent has ended ends itself.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import NamedTuple

from rbtools.execution import resources, worker_process
from rbtools.execution.context import RunContext
from rbtools.execution.executor import Executor, Finished, Grown, Job, Notice
from rbtools.execution.fork_server import ForkServer
from rbtools.execution.job import JobFunction, JobReport
from rbtools.execution.worker_process import Fits, GiveBack, NewLane, Worked
from rbtools.execution.workers_per_gpu import WorkersPerGPU

TRIES = 2


@dataclass
class _LocalProcess:
    """A worker process. ending: how it ended, once that is known."""

    pid: int
    ending: str | None = None


class _LocalWorker(NamedTuple):
    """A connection to a worker. lane: it takes turns in the process of the first worker of its GPU."""

    connection: Connection
    process: _LocalProcess
    lane: bool = False


class LocalExecutor(Executor):
    """`run.jobs` worker processes on this machine; with `run.gpus` as many as are fastest (WorkersPerGPU)."""

    def __init__(self, functions: Sequence[JobFunction], run: RunContext) -> None:
        super().__init__(functions, run)
        self._jobs: queue.SimpleQueue[tuple[Job, int] | None] = queue.SimpleQueue()
        self._ending = threading.Event()
        self._starting, self._growing, self._sharing_lock, self._sending = (
            threading.Lock() for _ in range(4)
        )
        self._server: ForkServer | None = None
        self._workers: dict[int, _LocalWorker] = {}
        self._threads: list[threading.Thread] = []
        self._sharing = WorkersPerGPU(
            run.gpus,
            can_take_turns=all(function.in_turn for function in functions),
            fixed=run.jobs_per_gpu if run.gpus and run.jobs_per_gpu > 1 else None,
        )

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
        work = partial(worker_process.work, list(self.functions), self.run)
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
        """Pass jobs to one worker, which is replaced when it dies."""
        given_back: tuple[Job, int] | None = None
        while (item := given_back or self._jobs.get()) is not None and not self._ending.is_set():
            given_back = None
            if number >= self.capacity:
                self._jobs.put(item)
                break
            job, tries = item
            try:
                worker = self._sent(number, job, tries)
                if worker is None:
                    return
            except Exception as error:  # no process, no memory, no file handle: the job fails
                problem = f"No worker process could be started: {error}. Use fewer --jobs."
                self.post(Finished(job.place, JobReport(problem=problem)))
                continue
            try:
                report = self._listen(worker, number, job.place)
            except (EOFError, OSError):
                self._close(number)
                if not self._ending.is_set():
                    self._died(worker, job, tries)
                continue
            if report is None:
                self._close(number)
                given_back = item
            else:
                self.post(Finished(job.place, report))
        self._close(number)

    def _sent(self, number: int, job: Job, tries: int) -> _LocalWorker | None:
        """The worker that has got the job; None if the executor is ending. One whose job has ended another
        worker before gets a process of its own.
        """
        with self._sending:  # meanwhile nothing changes in how workers share their GPU
            lane = self._sharing.in_turn and tries == 1 and number >= self.run.gpus
            worker = self._workers.get(number)
            if worker is not None and worker.lane is not lane:
                self._close(number)
                worker = None
            worker = worker or self._start(number, lane)
            if worker is not None:
                self._workers[number] = worker
                with contextlib.suppress(OSError):  # it has died: listening says so
                    worker.connection.send(job)
            return worker

    def _close(self, number: int) -> None:
        worker = self._workers.pop(number, None)
        if worker is not None:
            worker.connection.close()

    def _listen(self, worker: _LocalWorker, number: int, place: int) -> JobReport | None:
        """Post the progress of a worker until its job has ended; None if it gives the job back."""
        while True:
            message = worker.connection.recv()
            if isinstance(message, JobReport):
                return message
            if isinstance(message, GiveBack):
                return None
            if isinstance(message, Fits):
                self._sharing.most = min(message.workers, self.most // self.run.gpus)
            elif isinstance(message, Worked):
                if number < self.run.gpus or worker.lane is self._sharing.in_turn:
                    self._share(number, place, message.images)
            else:
                self.post(message)

    def _share(self, number: int, place: int, images: int) -> None:
        """Have more workers on each GPU or fewer, in turn or not, where what they have done says so."""
        with self._sharing_lock:
            with self._sending:
                if not self._sharing.report(number, place, images, time.monotonic()):
                    return
                self._give_back()
            self._resize(self._sharing.count * self.run.gpus)
            self.post(Grown(self.capacity))
            if self._sharing.settled:
                self.post(Notice(self._sharing.words(), warning=False))
                self.post({"event": "workers", **self._sharing.facts()})

    def _give_back(self) -> None:
        """Ask workers that share their GPU in another way than is wanted now for their jobs."""
        for number, worker in list(self._workers.items()):
            if number >= self.run.gpus and worker.lane is not self._sharing.in_turn:
                with contextlib.suppress(OSError):
                    worker.connection.send(GiveBack())

    def _start(self, number: int, lane: bool) -> _LocalWorker | None:
        """A new worker; None if the executor is ending."""
        with self._starting:  # from here on no server starts that nobody would end
            if self._ending.is_set():
                return None
            if self._server is None or not self._server.is_alive():
                self._server = self._started_server()
            if not lane:
                return self._forked(number)
            gpu = number % self.run.gpus
            if gpu not in self._workers:  # its first worker has had no job yet
                self._workers[gpu] = self._forked(gpu)
            return self._lane_of(self._workers[gpu], number) or self._forked(number)

    def _forked(self, number: int) -> _LocalWorker:
        assert self._server is not None
        connection, pid = self._server.fork(number)
        return _LocalWorker(connection, _LocalProcess(pid))

    @staticmethod
    def _lane_of(first: _LocalWorker, number: int) -> _LocalWorker | None:
        """A further worker in the process of another; None if that has ended."""
        ours, theirs = multiprocessing.Pipe()
        try:
            first.connection.send(NewLane(number, theirs))
        except OSError:
            ours.close()
            return None
        finally:
            theirs.close()
        return _LocalWorker(ours, first.process, lane=True)

    def _died(self, worker: _LocalWorker, job: Job, tries: int) -> None:
        """Try the job of a dead worker again, or report that it failed."""
        assert self._server is not None
        process = worker.process
        with self._sending:  # the system tells the status once
            process.ending = process.ending or _ending_in_words(self._server.status(process.pid))
        ending = process.ending
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
