"""What a worker process does: jobs in, reports out, for one lane or for several that take turns.

A lane is a connection and the thread that serves it, one job at a time. The main thread serves the first;
others are opened over its connection (`NewLane`), and share the process, its GPU context and its data.
"""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from rbtools.execution import device, turns
from rbtools.execution.executor import Job, Progress, run_on
from rbtools.execution.job import JobFunction, JobReport
from rbtools.execution.run import Run
from rbtools.execution.turns import Turns

if TYPE_CHECKING:
    from types import FrameType

_SECONDS_TO_END_ALONE = 10.0
_SECONDS_FOR_LANES = 1.0  # to end their jobs: the fork server kills those that take longer
_SECONDS_BETWEEN_PROGRESS = 0.2


class Fits(NamedTuple):
    """How many workers have room on a GPU, by what one of them took."""

    workers: int


class Worked(NamedTuple):
    """How many images a worker has done since it said so last."""

    images: int


class NewLane(NamedTuple):
    """To a worker: serve another connection, too, as the worker of that number; its handle follows."""

    number: int


class GiveBack(NamedTuple):
    """To a worker: end the job between two of its steps, or none. From a worker: it has done so."""


class _GivenBack(BaseException):
    """Ends a job that another worker will do."""


class _WorkerProcess:
    """What the lanes of a process share. status: with which it is to end, once that is so."""

    def __init__(self, functions: Sequence[JobFunction], run: Run) -> None:
        self.functions, self.run, self.turns = functions, run, Turns()
        self.in_turn = run.placement.gpus > 0 and all(function.in_turn for function in functions)
        self.lanes: list[_Lane] = []
        self.status: int | None = None

    def open(self, number: int, connection: Connection) -> None:
        """Serve a connection in a thread of its own."""
        lane = _Lane(self, connection, number)
        lane.thread = threading.Thread(target=self._serve, args=(lane,), daemon=True)
        lane.thread.start()

    @staticmethod
    def _serve(lane: _Lane) -> None:
        with contextlib.closing(lane.connection), contextlib.suppress(EOFError, OSError, SystemExit):
            lane.serve()

    def terminate(self, number: int, frame: FrameType | None) -> None:
        """The handler of SIGTERM: every job ends at its next step and leaves nothing behind."""
        self.status = 128 + number
        raise SystemExit(self.status)

    def wait_for_jobs(self, seconds: float | None = None) -> None:
        """Wait for the lanes that have a job, or for all of them if it may take any time."""
        end = None if seconds is None else time.monotonic() + seconds
        for lane in self.lanes:
            if lane.thread is not None and (lane.busy or end is None):
                lane.thread.join(None if end is None else max(end - time.monotonic(), 0))


class _Lane:
    """Serves one connection, in the main thread or in one of its own."""

    def __init__(self, process: _WorkerProcess, connection: Connection, number: int) -> None:
        self.process, self.connection = process, connection
        self.thread: threading.Thread | None = None
        self.busy = False
        # Memory is measured of a worker that is alone in its process.
        self.measured = not process.run.placement.gpus or bool(process.lanes)
        self.place, self.images = 0, 0
        self.last = self.sent = self.asked = 0.0
        self.run = copy.deepcopy(process.run).changed(  # with a store and a clock of its own
            worker=number,
            own_stream=process.in_turn and bool(process.lanes),
            progress=self._progress,
            event=connection.send,
            after_batch=self._worked,
            check_cancelled=self._check,
        )
        process.lanes.append(self)

    def serve(self) -> None:
        """Do one job after another. Raises EOFError or OSError when the connection ends."""
        while True:
            message = self.connection.recv()
            if isinstance(message, Job):
                self.connection.send(self._done(message))
            else:
                self._open(message)

    def _open(self, message: object) -> None:
        if isinstance(message, NewLane):
            self.process.open(message.number, Connection(reduction.recv_handle(self.connection)))

    def _done(self, job: Job) -> object:
        self.place, self.images, self.busy = job.place, 0, True
        try:
            with self.process.turns.taken(self._check):
                report = run_on(job, self.process.functions, self.run)
                self._check_gpu(report)
        except _GivenBack:
            return GiveBack()
        finally:
            self.busy = False
        self._measure()
        return report

    def _check_gpu(self, report: JobReport) -> None:
        """End the process if its GPU takes no more work after a failed job. Jobs of other lanes are lost with
        it, and tried again; where there are none, the report is sent first.
        """
        if report.problem is None or "torch" not in sys.modules or device.usable():
            return
        if not any(lane.busy for lane in self.process.lanes if lane is not self):
            self.connection.send(report)
        _leave(1)

    def _check(self) -> None:
        """Between steps: look now and then whether something else is wanted."""
        if self.process.status is not None:
            raise SystemExit(self.process.status)
        if time.monotonic() - self.asked < _SECONDS_BETWEEN_PROGRESS:
            return
        self.asked = time.monotonic()
        try:
            while self.connection.poll():
                message = self.connection.recv()
                if isinstance(message, GiveBack):
                    raise _GivenBack
                self._open(message)
        except (EOFError, OSError):  # the parent has ended
            raise SystemExit(128 + signal.SIGTERM) from None

    def _progress(self, text: str) -> None:
        if time.monotonic() - self.last > _SECONDS_BETWEEN_PROGRESS:
            self.last = time.monotonic()
            self.connection.send(Progress(text, self.place))

    def _measure(self) -> None:
        if not self.measured and "torch" in sys.modules:
            workers = device.workers_that_fit()
            if workers is not None:
                self.measured = True
                self.connection.send(Fits(workers))

    def _worked(self, count: int) -> None:
        self._measure()
        self.images += count
        if self.run.placement.gpus and time.monotonic() - self.sent > _SECONDS_BETWEEN_PROGRESS:
            self.sent = time.monotonic()
            self.connection.send(Worked(self.images))
            self.images = 0
        turns.pass_on()


def work(functions: Sequence[JobFunction], run: Run, connection: Connection, number: int) -> NoReturn:
    """The main function of a worker process: until its connections close, or SIGTERM comes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    process = _WorkerProcess(functions, run)
    signal.signal(signal.SIGTERM, process.terminate)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        try:
            with contextlib.closing(connection):
                _Lane(process, connection, number).serve()
        except (EOFError, OSError):
            process.wait_for_jobs()
        _leave(0)
    except SystemExit as end:
        process.status = int(end.code or 0)
        process.wait_for_jobs(_SECONDS_FOR_LANES)
        _leave(process.status)


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
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of the fork server, which ends at the same time
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)
