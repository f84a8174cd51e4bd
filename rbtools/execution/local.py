"""Worker processes on this machine: several records at a time.

Each worker is forked from a process that has imported what they need (`fork_server`); a thread of this
process listens to it. When a worker dies, its record is retried; a worker whose parent has ended ends itself.
"""

from __future__ import annotations

import contextlib
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
from typing import NoReturn

from rbtools.execution import device, executor
from rbtools.execution.fork_server import ForkServer
from rbtools.execution.run import Run

TRIES = 2
_SECONDS_TO_END_ALONE = 10.0
_SECONDS_BETWEEN_PROGRESS = 0.2


class LocalExecutor(executor.Executor):
    """`jobs` worker processes on this machine."""

    def __init__(self, functions: Sequence[executor.JobFunction], run: Run) -> None:
        super().__init__(functions, run)
        self._jobs: queue.SimpleQueue[tuple[executor.Job, int] | None] = queue.SimpleQueue()  # and its try
        self._ending = threading.Event()
        self._starting = threading.Lock()
        self._server: ForkServer | None = None
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> LocalExecutor:
        with contextlib.suppress(Exception):  # the first job tries again, and reports the error
            self._server = self._started_server()
        for number in range(self.capacity):
            self._threads.append(threading.Thread(target=self._serve, args=(number,), daemon=True))
            self._threads[-1].start()
        return self

    def _started_server(self) -> ForkServer:
        work = partial(_work, list(self.functions), self.run)
        return ForkServer(work, partial(_preload, list(self.functions) if self.preload else ()))

    def submit(self, job: executor.Job) -> None:
        """Queue a job; the first free worker takes it."""
        self._jobs.put((job, 1))

    def __exit__(self, *error: object) -> None:
        with self._starting:  # from here on no server is started, since nothing would end it
            self._ending.set()
        for _thread in self._threads:
            self._jobs.put(None)
        if self._server is not None:
            self._server.end()

    def _serve(self, number: int) -> None:
        """Pass jobs to one worker, which is replaced when it dies."""
        worker: tuple[Connection, int] | None = None
        while (item := self._jobs.get()) is not None and not self._ending.is_set():
            job, tries = item
            try:
                worker = worker or self._start(number)
                if worker is None:
                    return
            except Exception as error:  # no process, memory or file handle is left: the job fails
                problem = f"No worker process could be started: {error}. Use fewer --jobs."
                self.post(executor.Finished(job.place, executor.JobReport(problem=problem)))
                continue
            connection, pid = worker
            try:
                connection.send(job)
                while not isinstance(message := connection.recv(), executor.JobReport):
                    self.post(message)
                self.post(executor.Finished(job.place, message))
            except (EOFError, OSError):
                connection.close()
                worker = None
                if not self._ending.is_set():
                    self._died(pid, job, tries)
        if worker is not None:
            worker[0].close()

    def _start(self, number: int) -> tuple[Connection, int] | None:
        """The connection to a new worker, and its process number; None if the executor is ending."""
        with self._starting:
            if self._ending.is_set():
                return None
            if self._server is None or not self._server.is_alive():
                self._server = self._started_server()
            return self._server.fork(number)

    def _died(self, pid: int, job: executor.Job, tries: int) -> None:
        """Try the job of a dead worker again, or report that it failed."""
        assert self._server is not None
        ending = _ending_in_words(self._server.status(pid))
        if tries < TRIES and not job.helps:
            self._jobs.put((job, tries + 1))
            self.post(executor.Notice(f"A worker {ending}; its record is tried again."))
            return
        problem = (
            f"The worker process {ending}, {TRIES} times. If memory ran out, use fewer --jobs"
            " or a smaller --batch (rb-train: --batch-size)."
        )
        self.post(executor.Finished(job.place, executor.JobReport(problem=problem)))


def _ending_in_words(code: int | None) -> str:
    if code is None:
        return "was lost"
    if code < 0:
        names = {int(number): f" ({number.name})" for number in signal.Signals}
        return f"was killed by signal {-code}{names.get(-code, '')}"
    return f"ended with status {code}"


def _preload(functions: Sequence[executor.JobFunction]) -> None:
    for function in functions:
        function.preload()


# --- in the worker ----------------------------------------------------------------------------------


def _work(
    functions: Sequence[executor.JobFunction], run: Run, connection: Connection, number: int
) -> NoReturn:
    """The main function of a worker process: one job after another until the connection closes, or SIGTERM
    comes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, _terminate)  # the job releases its leases and stores what it has finished
    threading.Thread(target=_end_with_parent, daemon=True).start()
    place, last = 0, 0.0

    def progress(text: str) -> None:
        nonlocal last
        if time.monotonic() - last > _SECONDS_BETWEEN_PROGRESS:
            last = time.monotonic()
            connection.send(executor.Progress(text, place))

    run = run.changed(worker=number, progress=progress, event=connection.send)
    status = 0
    try:
        while True:
            job = connection.recv()
            place = job.place
            report = executor.run_on(job, functions, run)
            connection.send(report)
            if report.problem is not None and "torch" in sys.modules and not device.usable():
                status = 1
                break
    except (EOFError, OSError):
        pass
    except SystemExit as end:
        status = int(end.code or 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the fork server sends it too, and ends at the same time
    # Without torch's shutdown, which takes seconds on a busy machine.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)


def _terminate(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the group's signal and the parent's come in turn
    raise SystemExit(128 + number)


def _end_with_parent() -> None:
    """End this worker whenever its parent ends: then nobody waits for its results."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_SECONDS_TO_END_ALONE)
    os._exit(128 + signal.SIGTERM)
