"""The worker's side of `--engine ray`: what a Ray worker does with a record. Ray itself is not imported here.

A worker that sees the driver's store uses it like a local worker. It recognises that store by a lease that
the driver holds in it during the run: no other folder of that name has that file. A worker that does not see
it uses a store of its own (`rbtools.store.remote_proxy`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import re
import shutil
import signal
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rbtools import __version__
from rbtools.errors import RbError
from rbtools.execution.job import JobFunction, JobReport, run_job
from rbtools.execution.run import Run
from rbtools.store import lease
from rbtools.store.remote_proxy import File, NeedFiles, RemoteStoreProxy, is_name

_SECONDS_BETWEEN_PROGRESS = 0.5
_PREFIX = "rbtools-ray-"


class RunSpec(NamedTuple):
    """The common part of all tasks of one run.

    `folder`: the base of relative paths; `lease`: the name of a file in the driver's store.
    """

    functions: Sequence[JobFunction]
    run: Run
    folder: str
    lease: str | None


class RayTask(NamedTuple):
    """One function applied to one record; `known` has the files of the driver's store that it asked for."""

    number: int
    function: int
    record: dict[str, Any]
    helps: bool
    threads: int
    known: dict[File, bytes | None]


class Answer(NamedTuple):
    """The answer of a task: the report, or the files that it needs first, and the files for the store."""

    report: JobReport | None
    wants: frozenset[File] = frozenset()
    files: dict[File, bytes] = {}  # noqa: RUF012  (never changed)
    dropped: tuple[str, ...] = ()


class Inbox:
    """An actor on the driver's machine that holds what workers send while they work.

    Only the newest version of each file and the last progress text are kept, so it stays small.
    """

    def __init__(self) -> None:
        self._files: dict[tuple[int, str, str], bytes] = {}
        self._progress = ""
        self._arrived = asyncio.Event()

    async def progress(self, text: str) -> None:
        self._progress = text
        self._arrived.set()

    async def post(self, number: int, kind: str, name: str, data: bytes) -> None:
        self._files[number, kind, name] = data
        self._arrived.set()

    async def drain(self) -> tuple[dict[tuple[int, str, str], bytes], str]:
        """Wait until something has arrived; then take it all."""
        await self._arrived.wait()
        self._arrived.clear()
        files, text = self._files, self._progress
        self._files, self._progress = {}, ""
        return files, text


def serve(version: str, spec: bytes, task: RayTask, inbox: Any) -> Answer:
    """Run one task: the remote function."""
    if version != __version__:
        return Answer(
            JobReport(
                problem=f"The Ray node {socket.gethostname()} has rbtools {__version__}, driver {version}."
                " Install one version on all nodes."
            )
        )
    try:
        return _worker(spec).serve(task, inbox)
    except RbError as error:  # no room for the files that were sent, or they arrived damaged
        return Answer(JobReport(problem=str(error)))


class _Worker:
    """The state of a worker process between the tasks of one run."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        handler = signal.getsignal(signal.SIGINT)
        main = threading.current_thread() is threading.main_thread()  # no other thread may set a handler
        if main and handler in (signal.SIG_IGN, signal.SIG_DFL):
            # Ray stops a task by SIGINT, which a node started in the background ignores.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        # Trusted: pickled by the driver of this run and sent by its own Ray.
        self.spec: RunSpec = pickle.loads(data)
        with contextlib.suppress(OSError):
            os.chdir(self.spec.folder)
        run = self.spec.run
        self.proxy = None if sees(run, self.spec.lease) else _proxy(run)
        self.run = run if self.proxy is None else run.changed(store=self.proxy, divide=False)

    def serve(self, task: RayTask, inbox: Any) -> Answer:
        run = self.run.changed(helps=task.helps, threads=task.threads, progress=_progress_to(inbox))
        function = self.spec.functions[task.function]
        if self.proxy is not None:
            self.proxy.begin(task.known, lambda *file: inbox.post.remote(task.number, *file))
        try:
            with _file_here(task.record, task.known) as (record, put_back):
                report = run_job(function, record, run)
            report.result = put_back(report.result)
            return self._answer(report, set())
        except NeedFiles as missing:
            return self._answer(None, missing.files)
        finally:
            if self.proxy is not None:
                self.proxy.end()

    def _answer(self, report: JobReport | None, wants: set[File]) -> Answer:
        if self.proxy is None:
            return Answer(report, frozenset(wants))
        return Answer(report, frozenset(wants), self.proxy.written(), tuple(self.proxy.dropped))


_last: _Worker | None = None


def _worker(spec: bytes) -> _Worker:
    global _last
    if _last is None or _last.data != spec:
        _last = _Worker(spec)
    return _last


def sees(run: Run, lease: str | None) -> bool:
    """Whether the run's store is the same folder on this machine as on the driver's."""
    if run.store.folder is None:
        return True
    if lease is None:
        return False
    path = run.store.folder / "leases" / lease[:2] / lease
    # A network file system may cache that a file is missing: opening the folder refreshes that.
    with contextlib.suppress(OSError):
        os.listdir(path.parent)
    return path.exists()


def _proxy(run: Run) -> RemoteStoreProxy:
    """A store for this process. Those of workers that were killed are removed."""
    for old in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        label = old.name.removeprefix(_PREFIX).partition("-")[0]
        if lease.is_gone(lease.from_label(label)) and old.stat().st_uid == os.getuid():
            shutil.rmtree(old, ignore_errors=True)
    assert run.store.folder is not None
    folder = Path(tempfile.gettempdir(), f"{_PREFIX}{lease.label()}-{uuid.uuid4().hex}")
    return RemoteStoreProxy(folder, run.store.folder, force=run.store.force)


Result = dict[str, Any] | None


@contextlib.contextmanager
def _file_here(
    record: dict[str, Any], known: dict[File, bytes | None]
) -> Iterator[tuple[dict[str, Any], Callable[[Result], Result]]]:
    """The record with a copy of the user's checkpoint if that file is not on this machine.

    Yields the record, and a function that puts the file's own path back into a result.
    """
    path, name = record.get("checkpoint_file"), str(record.get("checkpoint")).removeprefix("sha256:")
    if not isinstance(path, str) or os.path.isfile(path) or not is_name(name):
        yield record, lambda result: result
        return
    if ("objects", name) not in known:
        raise NeedFiles({("objects", name)})
    data = known["objects", name]
    if data is None:
        yield record, lambda result: result
        return
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{lease.label()}-") as folder:
        # The name says what kind of weights these are; a record may have any.
        safe = re.sub(r"[^\w.-]", "-", os.path.basename(path), flags=re.ASCII)[-100:]
        copy = os.path.join(folder, safe if safe.strip(".") else "weights")
        Path(copy).write_bytes(data)
        yield {**record, "checkpoint_file": copy}, lambda result: _renamed(result, copy, path)


def _renamed(result: Result, copy: str, path: str) -> Result:
    if result is not None and result.get("checkpoint_file") == copy:
        return {**result, "checkpoint_file": path}
    return result


def _progress_to(inbox: Any) -> Callable[[str], None]:
    last = 0.0

    def progress(text: str) -> None:
        nonlocal last
        if time.monotonic() - last > _SECONDS_BETWEEN_PROGRESS:
            last = time.monotonic()
            inbox.progress.remote(text)

    return progress
