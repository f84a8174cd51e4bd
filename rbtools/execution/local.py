"""Worker processes on this machine: the same work, several records at a time.

Each worker is a fresh process (spawned, so that CUDA works) with a pipe; a thread in this process
listens to each. A worker that dies costs its record one retry; one whose parent is gone ends itself.
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
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, NoReturn

from rbtools.execution.context import RunContext
from rbtools.execution.job import JobFunction, JobReport, run_job

_SECONDS_TO_END = 1.5
_SECONDS_TO_END_ALONE = 10.0
_SECONDS_BETWEEN_WORDS = 0.2
TRIES = 2


class Job(NamedTuple):
    """A record for one of the works, and its place in the output."""

    place: int
    work: int
    record: dict[str, Any]


class Finished(NamedTuple):
    """What became of a task."""

    place: int
    report: JobReport


class Notice(NamedTuple):
    """What a worker is doing just now, for the status line; or that one was lost, as a warning."""

    text: str
    warning: bool = False


class LocalExecutor:
    """`run.jobs` processes that take tasks; `Finished`, `Said` and dicts (`run.event`) arrive in `events`.

    Use as a context: leaving it ends the workers, which keep what they have found so far. `size` is
    how many tasks are worked on at once.
    """

    def __init__(self, works: Sequence[JobFunction], run: RunContext, events: queue.SimpleQueue[Any]) -> None:
        self.works, self.run, self.events, self.size = works, run, events, run.jobs
        self._tasks: queue.SimpleQueue[tuple[Job, int] | None] = queue.SimpleQueue()
        self._ending = threading.Event()
        self._starting = threading.Lock()
        self._processes: dict[int, Any] = {}
        self._threads = [
            threading.Thread(target=self._serve, args=(number,), daemon=True) for number in range(run.jobs)
        ]

    def __enter__(self) -> LocalExecutor:
        for thread in self._threads:
            thread.start()
        return self

    def submit(self, task: Job) -> None:
        """Queue a task; it is taken by the first worker that is free."""
        self._tasks.put((task, 1))

    def __exit__(self, *_: object) -> None:
        with self._starting:  # from here on no worker starts that nobody would end
            self._ending.set()
        for _thread in self._threads:
            self._tasks.put(None)
        for process in list(self._processes.values()):
            process.terminate()
        end = time.monotonic() + _SECONDS_TO_END
        for process in list(self._processes.values()):
            process.join(max(end - time.monotonic(), 0))
            if process.is_alive():
                process.kill()

    def _serve(self, number: int) -> None:
        """Hand tasks to one worker process, a new one where the last has died."""
        # A worker inherits the mask: Ctrl-C is for this process alone, also while a worker still starts.
        resource_tracker.ensure_running()  # starting it would unblock the signal again
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        connection: Connection | None = None
        while (item := self._tasks.get()) is not None and not self._ending.is_set():
            task, tries = item
            try:
                connection = connection or self._start(number)
                if connection is None:
                    return
            except Exception as error:  # no process, no memory, no file handle: the record must hear of it
                problem = f"No worker process could be started: {error}. Use fewer --jobs."
                self.events.put(Finished(task.place, JobReport(problem=problem)))
                continue
            try:
                connection.send(task)
                self.events.put(Finished(task.place, self._listen(connection)))
            except (EOFError, OSError):
                connection.close()
                connection = None
                if not self._ending.is_set():
                    self._died(number, task, tries)
        if connection is not None:
            connection.close()

    def _listen(self, connection: Connection) -> JobReport:
        while True:
            message = connection.recv()
            if isinstance(message, JobReport):
                return message
            self.events.put(message if isinstance(message, dict) else Notice(message))

    def _start(self, number: int) -> Connection | None:
        """The way to a new worker; None where all is ending."""
        context = multiprocessing.get_context("spawn")
        run = dataclasses.replace(self.run, worker=number)
        with self._starting:
            if self._ending.is_set():
                return None
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, list(self.works), run), daemon=True)
            process.start()
            self._processes[number] = process
        theirs.close()
        return ours

    def _died(self, number: int, task: Job, tries: int) -> None:
        process = self._processes[number]
        process.join(1)
        how = _ending_in_words(process.exitcode)
        if tries < TRIES:
            self._tasks.put((task, tries + 1))
            self.events.put(Notice(f"A worker {how}; its record is tried again.", warning=True))
            return
        problem = (
            f"The worker process {how}, {TRIES} times. If memory ran out, use fewer --jobs"
            " or a smaller --batch (rb-train: --batch-size)."
        )
        self.events.put(Finished(task.place, JobReport(problem=problem)))


def _ending_in_words(code: int | None) -> str:
    if code is not None and code < 0:
        names = {int(one): f" ({one.name})" for one in signal.Signals}
        return f"was killed by signal {-code}{names.get(-code, '')}"
    return f"ended with status {code}"


def _work(connection: Connection, works: Sequence[JobFunction], run: RunContext) -> None:
    """The life of a worker: tasks in, reports out, until the pipe closes or SIGTERM comes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    said = 0.0

    def progress(text: str) -> None:
        nonlocal said
        if time.monotonic() - said > _SECONDS_BETWEEN_WORDS:
            said = time.monotonic()
            connection.send(text)

    run.progress, run.event = progress, connection.send
    try:
        while True:
            task: Job = connection.recv()
            work = works[task.work]
            connection.send(run_job(with_context(work, run), task.record, run))
    except (EOFError, OSError):
        _leave(0)
    except SystemExit as end:
        _leave(int(end.code or 0))


def with_context(work: Any, run: RunContext) -> JobFunction:
    """The work with this process's run in place of the one it was made with."""
    return dataclasses.replace(work, run=run) if hasattr(work, "run") else work  # type: ignore[no-any-return]


def _end(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)


def _end_with_parent() -> None:
    """End this worker when its parent does, however that ends: nobody waits for what we do then."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)  # the work leaves its leases and keeps what it has found
    time.sleep(_SECONDS_TO_END_ALONE)
    os._exit(128 + signal.SIGTERM)


def _leave(status: int) -> NoReturn:
    """End without torch's taking itself apart, which takes a busy machine seconds."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)
