"""A process that imports the modules of all workers once, and forks the workers.

It has one thread and uses no device, so that forking is safe with CUDA too. Python's own fork server lives
as long as the program and keeps its first environment and module path; this one belongs to one executor.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import reduction, resource_tracker
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import FrameType


_SECONDS_TO_END = 1.5  # seconds for the workers to end before they are killed
_SECONDS_FOR_STATUS = 1.0

Work = Callable[[Connection, int], NoReturn]


class ForkServer:
    """Forks processes that run `work(connection, number)`; `preload` is called before the first of them."""

    def __init__(self, work: Work, preload: Callable[[], None]) -> None:
        context = multiprocessing.get_context("spawn")
        self._calls, theirs = context.Pipe()
        self._lock = threading.Lock()
        self._process = context.Process(target=_serve, args=(theirs, work, preload), daemon=True)
        with _interrupt_blocked():
            self._process.start()
        theirs.close()

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def fork(self, number: int) -> tuple[Connection, int]:
        """A connection to a new worker, and its process number. Raises OSError or EOFError."""
        ours, theirs = multiprocessing.Pipe()
        try:
            with self._lock:
                self._calls.send(("fork", number))
                reduction.send_handle(self._calls, theirs.fileno(), self._process.pid)
                pid = self._calls.recv()
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        if isinstance(pid, OSError):
            ours.close()
            raise pid
        return ours, pid

    def status(self, pid: int) -> int | None:
        """The exit status of a worker whose connection broke; None where that is unknown."""
        with contextlib.suppress(OSError, EOFError), self._lock:
            self._calls.send(("status", pid))
            status: int | None = self._calls.recv()
            return status
        return None

    def end(self) -> None:
        """End all workers and the server, with SIGTERM and then SIGKILL."""
        self._process.terminate()
        self._process.join(_SECONDS_TO_END + 0.5)
        if self._process.is_alive():
            self._process.kill()


@contextlib.contextmanager
def _interrupt_blocked() -> Iterator[None]:
    """Block SIGINT: a process started meanwhile inherits the mask, and Ctrl-C reaches only its parent."""
    resource_tracker.ensure_running()  # starting it would unblock the signal again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(calls: Connection, work: Work, preload: Callable[[], None]) -> None:
    """The main function of the server: forks and reports statuses until SIGTERM or the end of the pipe."""
    signal.signal(signal.SIGTERM, _leave)
    workers: set[int] = set()
    try:
        # A module that cannot be imported is reported by the job that needs it. The system libraries of macOS
        # do not survive a fork once they are in use.
        if sys.platform != "darwin":
            with contextlib.suppress(Exception):
                preload()
        while True:
            request, value = calls.recv()
            if request == "status":
                status = _status(value, time.monotonic() + _SECONDS_FOR_STATUS)
                workers -= {value} if status is not None else set()
                calls.send(status)
            else:
                calls.send(_fork(calls, work, value, workers))
    except (EOFError, OSError, SystemExit):
        pass
    finally:
        # Blocked first: a handler that changes as its signal arrives makes Python print a traceback.
        with contextlib.suppress(SystemExit):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_all(workers)
        os._exit(0)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit


def _fork(calls: Connection, work: Work, number: int, workers: set[int]) -> int | OSError:
    """The process number of a new worker, or why there is none."""
    handle = reduction.recv_handle(calls)
    blocked = {signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
            calls.close()
            try:
                work(Connection(handle), number)  # this never returns into the server's code
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        workers.add(pid)
        return pid
    except OSError as error:
        return error
    finally:
        os.close(handle)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)


def _status(pid: int, end: float) -> int | None:
    """The exit status of a child process; None if it still runs at `end` or is no child."""
    while True:
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            return None
        time.sleep(0.005)


def _end_all(workers: set[int]) -> None:
    for pid in workers:
        os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + _SECONDS_TO_END
    for pid in workers:
        if _status(pid, end) is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
