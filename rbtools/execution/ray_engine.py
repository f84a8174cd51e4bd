"""The engine on a Ray cluster: every call is a Ray task, on a node that sees the driver's store.

Ray decides where a task runs. The engine, not Ray, retries tasks, so that a second try starts from what the
first one left in the store. A worker recognises the store by a file that the driver has in it during the run:
no other folder of that name has that file.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import pickle
import queue
import signal
import socket
import time
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from rbtools import __version__
from rbtools.execution import ray_cluster, resources
from rbtools.execution.engine import Call, Engine, JobReport, Notice, Progress, run_job
from rbtools.execution.run import Run
from rbtools.store.checksum import digest
from rbtools.store.files import write_whole

# A node of a cluster may be lost for reasons other than the record: one more try than for local workers.
TRIES = 3
_SECONDS_TO_STOP = 1.0
_SECONDS_TO_LEAVE = 1.0
_SECONDS_WHEN_INTERRUPTED = 0.5
_SECONDS_WHEN_DONE = 60.0  # on a busy machine
_SECONDS_BETWEEN_PROGRESS = 0.5
# Names of Ray's errors for a lost machine or process; others mean that the call failed.
_LOST = (
    "NodeDiedError",
    "WorkerCrashedError",
    "ObjectLostError",
    "OutOfMemoryError",
    "LocalRayletDiedError",
    "RaySystemError",
)


class RunSpec(NamedTuple):
    """The common part of all tasks. `folder`: the base of relative paths; `mark`: the name of a file in the
    driver's store."""

    run: Run
    folder: str
    mark: str | None


@dataclasses.dataclass(eq=False)
class _RayTask:
    """A submitted call, and the state of its Ray task."""

    call: Call
    future: Future[JobReport]
    number: int
    tries: int = 1
    ref: Any = None


class RayEngine(Engine):
    """Calls on a Ray cluster.

    Entering it joins the cluster, leaving it stops the tasks, whose finished work is stored. Raises RbError
    on entering.
    """

    own_capacity = True

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        # What the engine's thread has to do, in order; None ends it.
        self._todo: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._running: set[_RayTask] = set()
        self._waiting: deque[_RayTask] = deque()
        self._cancelled: list[_RayTask] = []  # their references may not be dropped while Ray shuts down
        self._count = 0
        self._ending = False
        self._mark: Path | None = None
        self._thread = Thread(target=self._work_off, daemon=True)
        self._membership = ray_cluster.Membership(run.placement.address)
        self._hush = contextlib.ExitStack()

    def __enter__(self) -> RayEngine:
        # Ray prints long reports on its nodes even without log_to_driver; our notices have one line.
        nowhere = self._hush.enter_context(open(os.devnull, "w"))
        self._hush.enter_context(contextlib.redirect_stdout(nowhere))
        try:
            self._join()
        except BaseException:
            self._hush.close()
            raise
        self._thread.start()
        return self

    def _join(self) -> None:
        ray = self._ray = self._membership.join()
        try:
            self._share = ray_cluster.share(ray, self.run)
            self.capacity = self.run.placement.jobs or self._share.capacity
            self.run = self.run.changed(device=self._share.device)
            spec = RunSpec(self.run.changed(jobs=1), os.getcwd(), self._marked())
            self._spec = ray.put(pickle.dumps(spec))
            near = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                ray.get_runtime_context().get_node_id(), soft=True
            )
            self._inbox = ray.remote(Inbox).options(num_cpus=0, scheduling_strategy=near).remote()
            self._serve = ray.remote(serve)
        except BaseException:
            self._leave(_SECONDS_WHEN_INTERRUPTED)
            raise

    def submit(self, call: Call) -> Future[JobReport]:
        """Submit a call; it starts as soon as there is room for it."""
        self._count += 1
        task = _RayTask(call, Future(), self._count)
        self._todo.put(lambda: self._waiting.append(task))
        return task.future

    def __exit__(self, *error: object) -> None:
        self._ending = True
        for task in list(self._running):
            with contextlib.suppress(Exception):
                self._ray.cancel(task.ref, force=False)
        end = time.monotonic() + _SECONDS_TO_STOP
        while self._running and time.monotonic() < end:
            time.sleep(0.02)
        self._todo.put(None)
        self._thread.join(_SECONDS_TO_LEAVE)
        self._leave(_SECONDS_WHEN_INTERRUPTED if any(error) else _SECONDS_WHEN_DONE)
        self._hush.close()

    def _leave(self, seconds: float) -> None:
        self._membership.leave(self, seconds)
        if self._mark is not None:
            with contextlib.suppress(OSError):
                self._mark.unlink()

    def _marked(self) -> str | None:
        """The name of a file that workers recognise this store by; None where it cannot be written."""
        name = digest({"kind": "ray", "run": uuid.uuid4().hex})
        self._mark = self.run.store.path("state", name)
        if self._mark is None:
            return None
        try:
            write_whole(self._mark, b"")
        except Exception:
            return None
        return name

    def _work_off(self) -> None:
        """The engine's thread: all that changes its state, one after another."""
        try:
            self._listen()
            while (step := self._todo.get()) is not None:
                step()
                # Without --jobs Ray is given all tasks at once, for nodes that join during the run.
                most = self.run.placement.jobs or 1 << 30
                while self._waiting and len(self._running) < most and not self._ending:
                    self._launch(self._waiting.popleft())
        except BaseException as error:
            if not self._ending:
                self.post(error)

    def _launch(self, task: _RayTask) -> None:
        threads = resources.threads_for(self.run, task.call.arch, self._share.threads)
        remote = self._serve.options(
            num_cpus=threads,
            num_gpus=self._share.gpus,
            max_retries=0,
            name=f"{self.run.tool} {task.number}",
        )
        self._running.add(task)
        task.ref = remote.remote(__version__, self._spec, task.call, threads, self._inbox)
        task.ref.future().add_done_callback(
            lambda future: self._todo.put(lambda: self._answered(task, future))
        )

    def _answered(self, task: _RayTask, future: Future[JobReport]) -> None:
        """Pass on the report of a task; retry one that was lost with its machine or process."""
        if self._ending:
            self._cancelled.append(task)
        self._running.remove(task)
        if self._ending:
            return
        try:
            report = future.result()
        except Exception as error:
            if not {cls.__name__ for cls in type(error).__mro__}.intersection(_LOST):
                problem = f"A Ray worker could not do the work: {_in_words(error)}"
                problem += " Is the same rbtools on all nodes?"
            elif task.tries < TRIES:
                task.tries += 1
                self._waiting.appendleft(task)
                lost = f"A Ray worker was lost ({type(error).__name__}); its record is tried again."
                self.post(Notice(lost))
                return
            else:
                problem = (
                    f"The Ray worker was lost {TRIES} times, at last with {type(error).__name__}:"
                    f" {_in_words(error)} If memory ran out, use more --threads (fewer tasks a node) or a"
                    " smaller --batch (rb-train: --batch-size)."
                )
            report = JobReport(problem=problem)
        task.future.set_result(report)

    def _listen(self) -> None:
        """Wait for the next status text of a worker."""
        future = self._inbox.drain.remote().future()
        future.add_done_callback(lambda done: self._todo.put(lambda: self._show(done)))

    def _show(self, future: Future[str]) -> None:
        if self._ending:  # no call may reach Ray while it shuts down: it would end the process
            return
        with contextlib.suppress(Exception):  # the actor is gone: only progress is lost
            self.post(Progress(future.result()))
            self._listen()


def _in_words(error: Exception) -> str:
    """The last line of Ray's message, the error itself, as one sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if type(error).__name__.startswith("RayTaskError") and lines else " ".join(lines[:1])
    return text if text.endswith(".") else f"{text}."


class Inbox:
    """An actor on the driver's machine that holds the last status text of the workers."""

    def __init__(self) -> None:
        self._text = ""
        self._arrived = asyncio.Event()

    async def progress(self, text: str) -> None:
        self._text = text
        self._arrived.set()

    async def drain(self) -> str:
        """Wait until a text has arrived."""
        await self._arrived.wait()
        self._arrived.clear()
        return self._text


# --- in the worker ----------------------------------------------------------------------------------


def serve(version: str, spec: bytes, call: Call, threads: int, inbox: Any) -> JobReport:
    """Run one call: the remote function."""
    node = socket.gethostname()
    if version != __version__:
        return JobReport(
            problem=f"The Ray node {node} has rbtools {__version__}, driver {version}. Install one version on"
            " all nodes."
        )
    if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.SIG_DFL):
        with contextlib.suppress(ValueError):  # this is not the main thread
            # Ray stops a task by SIGINT, which a node started in the background ignores.
            signal.signal(signal.SIGINT, signal.default_int_handler)
    run, folder, mark = _loaded(spec)
    with contextlib.suppress(OSError):
        os.chdir(folder)
    if not sees(run, mark):
        return JobReport(
            problem=f"The Ray node {node} does not see the store {run.store.folder}. Name a folder that all"
            " nodes share with --store, or leave out --engine ray."
        )
    last = 0.0

    def progress(text: str) -> None:
        nonlocal last
        if time.monotonic() - last > _SECONDS_BETWEEN_PROGRESS:
            last = time.monotonic()
            inbox.progress.remote(text)

    return run_job(call, run.changed(threads=threads, progress=progress))


_last: tuple[bytes, RunSpec] | None = None


def _loaded(spec: bytes) -> RunSpec:
    """The specification of a run; one process serves many of its tasks with the same store."""
    global _last
    if _last is None or _last[0] != spec:
        _last = spec, pickle.loads(spec)  # trusted: pickled by the driver of this run, sent by its own Ray
    return _last[1]


def sees(run: Run, mark: str | None) -> bool:
    """Whether the run's store is the same folder on this machine as on the driver's."""
    if run.store.folder is None:
        return True
    if mark is None:
        return False
    path = run.store.folder / "state" / mark[:2] / mark
    # A network file system may cache that a file is missing: opening the folder refreshes that.
    with contextlib.suppress(OSError):
        os.listdir(path.parent)
    return path.exists()
