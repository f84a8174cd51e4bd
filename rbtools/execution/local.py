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
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import reduction
from multiprocessing.connection import Connection

from rbtools.execution import resources, worker_process
from rbtools.execution.executor import Executor, Finished, Grown, Job, Notice
from rbtools.execution.fork_server import ForkServer
from rbtools.execution.job import JobFunction, JobReport
from rbtools.execution.run import Run
from rbtools.execution.worker_process import Fits, GiveBack, NewLane, Worked
from rbtools.execution.workers_per_gpu import WorkersPerGPU

TRIES = 2


@dataclass
class _LocalProcess:
    """A worker process. status: with which it ended, once that is known."""

    pid: int
    status: int | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class _LocalWorker:
    """A connection to a worker. lane: it takes turns in the process of the first worker of its GPU. in_turn:
    that was wanted when it started.
    """

    def __init__(self, connection: Connection, process: _LocalProcess, *, lane: bool = False) -> None:
        self.connection, self.process, self.lane, self.in_turn = connection, process, lane, lane
        self.lock = threading.Lock()

    def send(self, message: object, handle: int | None = None) -> None:
        """Send a message, and the handle of a connection after it, from any thread. Raises OSError."""
        with self.lock:
            if self.connection.closed:
                raise OSError("the worker has ended")
            self.connection.send(message)
            if handle is not None:
                reduction.send_handle(self.connection, handle, self.process.pid)

    def close(self) -> None:
        with self.lock:
            self.connection.close()


class LocalExecutor(Executor):
    """`jobs` worker processes on this machine; with `gpus` as many as are fastest (WorkersPerGPU)."""

    def __init__(self, functions: Sequence[JobFunction], run: Run) -> None:
        super().__init__(functions, run)
        self._jobs: queue.SimpleQueue[tuple[Job, int] | None] = queue.SimpleQueue()
        self._ending = threading.Event()
        self._starting, self._growing, self._changing = (threading.RLock() for _ in range(3))
        self._server: ForkServer | None = None
        self._workers: dict[int, _LocalWorker] = {}
        self._tried_again: set[int] = set()  # workers whose job has ended another process before
        self._threads: list[threading.Thread] = []
        self._sharing = WorkersPerGPU(
            run.placement.gpus,
            can_take_turns=all(function.in_turn for function in functions)
            and run.placement.device.partition(":")[0]
            in ("auto", "cuda", "cpu"),  # of others no random state is kept
            fixed=run.placement.jobs_per_gpu
            if run.placement.gpus and run.placement.jobs_per_gpu > 1
            else None,
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
                worker = self._worker(number, tries)
                if worker is None:
                    return
            except Exception as error:  # no process, no memory, no file handle: the job fails
                problem = f"No worker process could be started: {error}. Use fewer --jobs."
                self.post(Finished(job.place, JobReport(problem=problem)))
                continue
            try:
                worker.send(job)
                with self._changing:  # it may have changed in what way workers share their GPU
                    self._give_back(number, worker)
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

    def _worker(self, number: int, tries: int) -> _LocalWorker | None:
        """The worker of that number, started if need be; None if the executor is ending. A job that has ended
        a process before gets one of its own.
        """
        with self._changing:
            if tries > 1:
                self._tried_again.add(number)
            else:
                self._tried_again.discard(number)
            lane = self._sharing.in_turn and tries == 1 and number >= self.run.placement.gpus
            worker = self._workers.get(number)
            alone = tries > 1 and self._sharing.can_take_turns
            if worker is not None and (alone or worker.lane is not lane):
                self._close(number)
                worker = None
            worker = worker or self._start(number, lane)
            if worker is not None:
                worker.in_turn = self._sharing.in_turn
                self._workers[number] = worker
            return worker

    def _close(self, number: int) -> None:
        with self._changing:
            worker = self._workers.pop(number, None)
        if worker is not None:
            worker.close()

    def _listen(self, worker: _LocalWorker, number: int, place: int) -> JobReport | None:
        """Post the progress of a worker until its job has ended; None if it gives the job back."""
        while True:
            message = worker.connection.recv()
            if isinstance(message, JobReport):
                return message
            if isinstance(message, GiveBack):
                return None
            if isinstance(message, Fits):
                self._sharing.most = min(message.workers, self.most // self.run.placement.gpus)
            elif isinstance(message, Worked):
                if number < self.run.placement.gpus or worker.in_turn is self._sharing.in_turn:
                    self._share(number, place, message.images)
            else:
                self.post(message)

    def _share(self, number: int, place: int, images: int) -> None:
        """Have more workers on each GPU or fewer, in turn or not, where what they have done says so."""
        with self._changing:
            if not self._sharing.report(number, place, images, time.monotonic()):
                return
            for other, worker in self._workers.items():
                self._give_back(other, worker)
            self._resize(self._sharing.count * self.run.placement.gpus)
            self.post(Grown(self.capacity))
            if self._sharing.settled:
                self.post(Notice(self._sharing.words(), warning=False))
                self.post({"event": "workers", **self._sharing.facts()})

    def _give_back(self, number: int, worker: _LocalWorker) -> None:
        """Ask a worker for its job if workers are to share their GPU in another way now."""
        if (
            number in self._tried_again
            or number < self.run.placement.gpus
            or worker.in_turn is self._sharing.in_turn
        ):
            return
        with contextlib.suppress(OSError):
            worker.send(GiveBack())

    def _start(self, number: int, lane: bool) -> _LocalWorker | None:
        """A new worker; None if the executor is ending."""
        with self._starting:  # from here on no server starts that nobody would end
            if self._ending.is_set():
                return None
            if self._server is None or not self._server.is_alive():
                self._server = self._started_server()
            gpu = number % max(self.run.placement.gpus, 1)
            if not lane or gpu in self._tried_again:
                return self._forked(number)
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
            first.send(NewLane(number), theirs.fileno())
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
        with process.lock:  # the system tells the status once
            if process.status is None:
                process.status = self._server.status(process.pid)
            ending = _ending_in_words(process.status)
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
