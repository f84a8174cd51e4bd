"""Worker processes on this machine: several records at a time.

A thread of this process starts each worker and listens to it. When a worker dies, its record is tried again;
a worker whose parent has ended ends itself.
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
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from rbtools.execution import device, executor
from rbtools.execution.run import Run

TRIES = 2
_SECONDS_TO_END = 1.5  # for the workers to end before they are killed
_SECONDS_TO_END_ALONE = 10.0
_SECONDS_BETWEEN_PROGRESS = 0.2

Worker = tuple[Connection, SpawnProcess]


class LocalExecutor(executor.Executor):
    """`jobs` worker processes on this machine."""

    def __init__(self, functions: Sequence[executor.JobFunction], run: Run) -> None:
        super().__init__(functions, run)
        self._jobs: queue.SimpleQueue[tuple[executor.Job, int] | None] = queue.SimpleQueue()  # and its try
        self._ending = threading.Event()
        self._starting = threading.Lock()
        self._processes: set[SpawnProcess] = set()

    def __enter__(self) -> LocalExecutor:
        resource_tracker.ensure_running()  # here, since starting it unblocks SIGINT in its thread
        for number in range(self.capacity):
            threading.Thread(target=self._serve, args=(number,), daemon=True).start()
        return self

    def submit(self, job: executor.Job) -> None:
        """Queue a job; the first free worker takes it."""
        self._jobs.put((job, 1))

    def __exit__(self, *error: object) -> None:
        with self._starting:  # from here on no worker is started, since nothing would end it
            self._ending.set()
        for _number in range(self.capacity):
            self._jobs.put(None)
        for process in self._processes:
            process.terminate()
        end = time.monotonic() + _SECONDS_TO_END
        for process in self._processes:
            process.join(max(end - time.monotonic(), 0))
            if process.is_alive():
                process.kill()

    def _serve(self, number: int) -> None:
        """Pass jobs to one worker, which is replaced when it dies."""
        # A process started by this thread inherits the mask: Ctrl-C reaches only its parent.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        worker: Worker | None = None
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
            connection, process = worker
            try:
                connection.send(job)
                while not isinstance(message := connection.recv(), executor.JobReport):
                    self.post(message)
                self.post(executor.Finished(job.place, message))
            except (EOFError, OSError):
                connection.close()
                worker = None
                if not self._ending.is_set():
                    self._died(process, job, tries)

    def _start(self, number: int) -> Worker | None:
        """The connection to a new worker, and its process; None if the executor is ending."""
        context = multiprocessing.get_context("spawn")
        with self._starting:
            if self._ending.is_set():
                return None
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work, args=(list(self.functions), self.run, theirs, number), daemon=True
            )
            try:
                process.start()
            finally:
                theirs.close()
            self._processes.add(process)
            return ours, process

    def _died(self, process: SpawnProcess, job: executor.Job, tries: int) -> None:
        """Try the job of a dead worker again, or report that it failed."""
        process.join(_SECONDS_TO_END)
        ending = _ending_in_words(process.exitcode)
        if tries < TRIES:
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


# --- in the worker ----------------------------------------------------------------------------------


def _work(functions: Sequence[executor.JobFunction], run: Run, connection: Connection, number: int) -> None:
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
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it comes from the parent and from the group
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
