"""Worker processes on this machine.

Each worker is started by a thread of this process, which also receives its messages. If a worker dies, its
call is tried again. If the parent process ends, its workers end themselves. (A pool of `concurrent.futures`
breaks if one worker dies, and cannot pass on messages of a call before its result.)
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
from concurrent.futures import Future
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, NamedTuple

from rbtools.execution import device
from rbtools.execution.engine import Call, Engine, JobReport, run_job
from rbtools.execution.report import Report
from rbtools.execution.run import Run

TRIES = 2
_SECONDS_TO_END = 1.5  # that the workers have to end before they are killed
_SECONDS_TO_END_ALONE = 10.0
_SECONDS_BETWEEN_PROGRESS = 0.2

Worker = tuple[Connection, SpawnProcess]


class _Task(NamedTuple):
    call: Call
    future: Future[JobReport]
    tries: int = 1


class Processes(Engine):
    """An engine with `jobs` worker processes on this machine."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._ending = threading.Event()
        self._starting = threading.Lock()
        self._processes: set[SpawnProcess] = set()

    def __enter__(self) -> Processes:
        resource_tracker.ensure_running()  # here, because starting it unblocks SIGINT in the thread
        for number in range(self.capacity):
            threading.Thread(target=self._pass_calls_to_worker, args=(number,), daemon=True).start()
        return self

    def submit(self, call: Call) -> Future[JobReport]:
        task = _Task(call, Future())
        self._tasks.put(task)
        return task.future

    def __exit__(self, *error: object) -> None:
        with self._starting:  # no worker starts from now on, because nothing would end it
            self._ending.set()
        for _number in range(self.capacity):
            self._tasks.put(None)
        for process in self._processes:
            process.terminate()
        end = time.monotonic() + _SECONDS_TO_END
        for process in self._processes:
            process.join(max(end - time.monotonic(), 0))
            if process.is_alive():
                process.kill()

    def _pass_calls_to_worker(self, number: int) -> None:
        # A process started by this thread inherits the mask, so Ctrl-C reaches only the parent.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        worker: Worker | None = None
        while (task := self._tasks.get()) is not None and not self._ending.is_set():
            if task.tries == 1 and not task.future.set_running_or_notify_cancel():
                continue
            try:
                worker = worker or self._start(number)
                if worker is None:
                    return
            except Exception as error:  # no process, memory or file handle is left
                problem = f"No worker process could be started: {error}. Use fewer --jobs."
                task.future.set_result(JobReport(problem=problem))
                continue
            connection, process = worker
            try:
                connection.send(task.call)
                while not isinstance(message := connection.recv(), JobReport):
                    self.post(partial(self._tell, task.call, message))
                task.future.set_result(message)
            except (EOFError, OSError):
                connection.close()
                worker = None
                if not self._ending.is_set():
                    self._repeat_or_fail(process, task)
            except Exception as error:  # raised by pickle, for example for a lambda
                connection.close()
                worker = None
                problem = f"The work cannot be sent to another process: {error}. Use --jobs 1."
                task.future.set_result(JobReport(problem=problem))

    def _tell(self, call: Call, message: str | dict[str, Any], report: Report) -> None:
        """Pass on the status of a call, which is a string for the user or an event for programs."""
        if isinstance(message, str):
            report.progress(self.status(message, call))
        else:
            report.event(message)

    def _start(self, number: int) -> Worker | None:
        """The connection to a new worker, and its process. Returns None if the engine is shutting down."""
        context = multiprocessing.get_context("spawn")
        with self._starting:
            if self._ending.is_set():
                return None
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(self.run, theirs, number), daemon=True)
            try:
                process.start()
            finally:
                theirs.close()
            self._processes.add(process)
            return ours, process

    def _repeat_or_fail(self, process: SpawnProcess, task: _Task) -> None:
        process.join(_SECONDS_TO_END)
        ending = _ending_in_words(process.exitcode)
        if task.tries < TRIES:
            self._tasks.put(task._replace(tries=task.tries + 1))
            self.post(lambda report: report.warn(f"A worker {ending}; its work is repeated."))
            return
        problem = (
            f"The worker process {ending}, {TRIES} times. If memory ran out, use fewer --jobs"
            " or a smaller --batch (rb-train: --batch-size)."
        )
        task.future.set_result(JobReport(problem=problem))


def _ending_in_words(code: int | None) -> str:
    if code is None:
        return "was lost"
    if code < 0:
        names = {int(number): f" ({number.name})" for number in signal.Signals}
        return f"was killed by signal {-code}{names.get(-code, '')}"
    return f"ended with status {code}"


# --- in the worker ----------------------------------------------------------------------------------


def _work(run: Run, connection: Connection, number: int) -> None:
    """The main function of a worker, which runs calls until the connection closes or SIGTERM arrives."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, _terminate)  # a job stores what it has finished
    threading.Thread(target=_end_with_parent, daemon=True).start()
    last = 0.0

    def progress(text: str) -> None:
        nonlocal last
        if time.monotonic() - last > _SECONDS_BETWEEN_PROGRESS:
            last = time.monotonic()
            connection.send(text)

    run = run.changed(worker=number, progress=progress, event=connection.send)
    status = 0
    try:
        while True:
            report = run_job(connection.recv(), run)
            connection.send(report)
            if report.problem is not None and "torch" in sys.modules and not device.usable():
                status = 1
                break
    except (EOFError, OSError):
        pass
    except SystemExit as end:
        status = int(end.code or 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is sent by the parent and to the group
    # Skip torch's shutdown, which takes seconds on a busy machine.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)


def _terminate(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the group's signal and the parent's both arrive
    raise SystemExit(128 + number)


def _end_with_parent() -> None:
    """End this worker when its parent ends, because no process is then waiting for its results."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_SECONDS_TO_END_ALONE)
    os._exit(128 + signal.SIGTERM)
