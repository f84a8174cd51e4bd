"""What a worker process does: jobs in, reports out, for one lane or for several that take turns.

A lane is a connection and the thread that serves it, one job at a time. The main thread serves the first;
others are opened over its connection (`NewLane`), and share the process, its GPU context and its data.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from rbtools.execution import device, turns
from rbtools.execution.context import RunContext
from rbtools.execution.executor import Job, Progress, run_on
from rbtools.execution.job import JobFunction
from rbtools.execution.turns import Turns

if TYPE_CHECKING:
    from types import FrameType

_SECONDS_TO_END_ALONE = 10.0
_SECONDS_FOR_LANES = 1.0  # to end: the fork server kills those that take longer
_SECONDS_BETWEEN_PROGRESS = 0.2


class Fits(NamedTuple):
    """How many workers have room on a GPU, by what one of them took."""

    workers: int


class Worked(NamedTuple):
    """How many images a worker has done since it said so last."""

    images: int


class NewLane(NamedTuple):
    """To a worker: serve this connection, too, as the worker of that number."""

    number: int
    connection: Connection


class GiveBack(NamedTuple):
    """To a worker: end the job between two of its steps, or none. From a worker: it has done so."""


class _GivenBack(BaseException):
    """Ends a job that another worker will do."""


class _WorkerProcess:
    """What the lanes of a process share."""

    def __init__(self, functions: Sequence[JobFunction], run: RunContext) -> None:
        self.functions, self.run, self.turns = functions, run, Turns()
        self.in_turn = run.gpus > 0 and all(function.in_turn for function in functions)
        self.lanes: list[threading.Thread] = []
        self.status: int | None = None  # set when the process is to end

    def open(self, lane: NewLane) -> None:
        thread = threading.Thread(target=self._serve, args=(lane,), daemon=True)
        self.lanes.append(thread)
        thread.start()

    def _serve(self, lane: NewLane) -> None:
        with contextlib.suppress(EOFError, OSError, SystemExit):
            _Lane(self, lane.connection, lane.number).serve()

    def wait_for_lanes(self, seconds: float | None = None) -> None:
        for thread in self.lanes:
            thread.join(seconds)


class _Lane:
    """Serves one connection."""

    def __init__(
        self, process: _WorkerProcess, connection: Connection, number: int, *, first: bool = False
    ) -> None:
        self.process, self.connection = process, connection
        # Memory is measured of a worker that is alone in its process.
        self.measured = not (process.run.gpus and first)
        self.place, self.images = 0, 0
        self.last = self.sent = self.asked = 0.0
        self.run = dataclasses.replace(
            copy.deepcopy(process.run),  # with a store and a clock of its own
            worker=number,
            own_stream=process.in_turn,
            progress=self._progress,
            event=connection.send,
            after_batch=self._worked,
            check_cancelled=self._check,
        )

    def serve(self) -> None:
        """Do one job after another. Raises EOFError or OSError when the connection ends."""
        while True:
            message = self.connection.recv()
            if isinstance(message, NewLane):
                self.process.open(message)
            elif isinstance(message, Job):
                self.connection.send(self._done(message))

    def _done(self, job: Job) -> object:
        self.place, self.images = job.place, 0
        try:
            with self.process.turns.taken(self._check):
                report = run_on(job, self.process.functions, self.run)
        except _GivenBack:
            return GiveBack()
        self._measure()
        return report

    def _check(self) -> None:
        """Between steps: look now and then whether something else is wanted."""
        if self.process.status is not None:
            raise SystemExit(self.process.status)
        if time.monotonic() - self.asked < _SECONDS_BETWEEN_PROGRESS:
            return
        self.asked = time.monotonic()
        while self.connection.poll():
            message = self.connection.recv()
            if isinstance(message, NewLane):
                self.process.open(message)
            elif isinstance(message, GiveBack):
                raise _GivenBack

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
        if self.run.gpus and time.monotonic() - self.sent > _SECONDS_BETWEEN_PROGRESS:
            self.sent = time.monotonic()
            self.connection.send(Worked(self.images))
            self.images = 0
        turns.pass_on()


def work(functions: Sequence[JobFunction], run: RunContext, connection: Connection, number: int) -> NoReturn:
    """The main function of a worker process: until its connections close, or SIGTERM comes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    process = _WorkerProcess(functions, run)
    try:
        try:
            _Lane(process, connection, number, first=True).serve()
        except (EOFError, OSError):
            process.wait_for_lanes()
        _leave(0)
    except SystemExit as end:
        process.status = int(end.code or 0)
        process.wait_for_lanes(_SECONDS_FOR_LANES)
        _leave(process.status)


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
