"""The process that forks workers: modules imported once, distinct workers, and no process left at the end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import pytest

from rbtools.execution.executor import JobFunction
from rbtools.execution.fork_server import ForkServer
from rbtools.execution.local import LocalExecutor
from rbtools.execution.run import Run

mac = pytest.mark.skipif(sys.platform == "darwin", reason="workers load for themselves there")
LOADED = "RB_TEST_LOADED_BY"


class Named(JobFunction):
    """Say which process worked, and which one has loaded what it takes."""

    def preload(self) -> None:
        os.environ[LOADED] = str(os.getpid())

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        return {**record, "pid": os.getpid(), "loaded": os.environ.get(LOADED)}


def work(connection: Connection, number: int) -> NoReturn:
    connection.send((number, os.getpid()))
    connection.recv()
    os._exit(3)


def nothing() -> None:
    """Import nothing."""


@pytest.fixture
def server() -> Iterator[ForkServer]:
    server = ForkServer(work, nothing)
    yield server
    server.end()


def test_workers_have_numbers_and_leave_a_status(server: ForkServer) -> None:
    workers = [server.fork(number) for number in (4, 5)]
    for (connection, pid), number in zip(workers, (4, 5), strict=True):
        assert connection.recv() == (number, pid)
    (first, pid), (second, other) = workers
    first.send("end")
    assert server.status(pid) == 3
    os.kill(other, signal.SIGKILL)
    with pytest.raises(EOFError):
        second.recv()
    assert server.status(other) == -signal.SIGKILL
    assert server.status(other) is None  # known no more


def test_at_the_end_nobody_is_left(server: ForkServer) -> None:
    connection, pid = server.fork(0)
    connection.recv()
    server.end()
    assert not server.is_alive()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises((OSError, EOFError)):
        server.fork(1)
    assert server.status(pid) is None


@pytest.mark.parametrize("preload", [False, pytest.param(True, marks=mac)])
def test_what_workers_need_is_loaded_once_and_only_where_asked(preload: bool) -> None:
    executor = LocalExecutor([Named()], Run.of(tool="test", jobs=1))
    executor.preload = preload
    with executor:
        (event,) = executor.map([{}])
        assert executor._server is not None
        loaded = str(executor._server._process.pid) if preload else None
    assert event.report.result is not None and event.report.result["loaded"] == loaded


def test_a_server_that_was_killed_is_replaced() -> None:
    with LocalExecutor([Named()], Run.of(tool="test", jobs=1)) as executor:
        assert executor._server is not None
        executor._server._process.kill()
        executor._server._process.join()
        (event,) = executor.map([{}])
    assert event.report.result is not None and event.report.result["pid"] != os.getpid()
