"""The executor on a Ray cluster: every job is a Ray task, on a node that sees the driver's store.

Ray decides where a task runs. The executor, not Ray, retries tasks, so that a second try starts from what the
first one left in the store. A worker recognises the store by a lease that the driver holds in it during the
run: no other folder of that name has that file.
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
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools import __version__
from rbtools.execution import executor, ray_cluster, resources
from rbtools.execution.run import Run
from rbtools.store import lease
from rbtools.store.checksum import digest

if TYPE_CHECKING:
    from concurrent.futures import Future


# A node of a cluster may be lost for reasons other than the record: one more try than for local workers.
TRIES = 3
_SECONDS_TO_STOP = 1.0
_SECONDS_TO_LEAVE = 1.0
_SECONDS_WHEN_INTERRUPTED = 0.5
_SECONDS_WHEN_DONE = 60.0  # on a busy machine
_SECONDS_BETWEEN_PROGRESS = 0.5
# Names of Ray's errors for a lost machine or process; others mean that the job failed.
_LOST = (
    "NodeDiedError",
    "WorkerCrashedError",
    "ObjectLostError",
    "OutOfMemoryError",
    "LocalRayletDiedError",
    "RaySystemError",
)


class RunSpec(NamedTuple):
    """The common part of all tasks of one run.

    `folder`: the base of relative paths; `lease`: the name of a file in the driver's store.
    """

    functions: Sequence[executor.JobFunction]
    run: Run
    folder: str
    lease: str | None


@dataclasses.dataclass
class _Ticket:
    """A submitted job, and the state of its Ray task."""

    job: executor.Job
    number: int
    tries: int = 1
    ref: Any = None


class RayExecutor(executor.Executor):
    """Jobs on a Ray cluster.

    Entering it joins the cluster, leaving it stops the tasks, whose finished work is stored. Raises RbError
    on entering.
    """

    own_capacity = True

    def __init__(self, functions: Sequence[executor.JobFunction], run: Run) -> None:
        super().__init__(functions, run)
        # Calls for the executor's thread, in order; None ends it.
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._running: dict[int, _Ticket] = {}
        self._waiting: deque[_Ticket] = deque()
        self._cancelled: list[_Ticket] = []  # their references may not be dropped while Ray shuts down
        self._count = 0
        self._ending = False
        self._lease: lease.Lease | None = None
        self._thread = threading.Thread(target=self._serve_calls, daemon=True)
        self._membership = ray_cluster.Membership(run.placement.address)
        self._hush = contextlib.ExitStack()

    def __enter__(self) -> RayExecutor:
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
            workers = self.run.placement.workers or self.capacity
            run = self.run.changed(device=self._share.device, jobs=1, workers=workers)
            spec = RunSpec(list(self.functions), run, os.getcwd(), self._claim_lease())
            self._spec = ray.put(pickle.dumps(spec))
            near = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                ray.get_runtime_context().get_node_id(), soft=True
            )
            self._inbox = ray.remote(Inbox).options(num_cpus=0, scheduling_strategy=near).remote()
            self._serve = ray.remote(serve)
        except BaseException:
            self._leave(_SECONDS_WHEN_INTERRUPTED)
            raise

    def submit(self, job: executor.Job) -> None:
        """Submit a job; it starts as soon as there is room for it."""
        self._count += 1
        ticket = _Ticket(job, self._count)
        self._calls.put(lambda: self._waiting.append(ticket))

    def __exit__(self, *error: object) -> None:
        self._ending = True
        for ticket in list(self._running.values()):
            with contextlib.suppress(Exception):
                self._ray.cancel(ticket.ref, force=False)
        end = time.monotonic() + _SECONDS_TO_STOP
        while self._running and time.monotonic() < end:
            time.sleep(0.02)
        self._calls.put(None)
        self._thread.join(_SECONDS_TO_LEAVE)
        self._leave(_SECONDS_WHEN_INTERRUPTED if any(error) else _SECONDS_WHEN_DONE)
        self._hush.close()

    def _leave(self, seconds: float) -> None:
        self._membership.leave(self, seconds)
        if self._lease is not None:
            self._lease.release()

    def _claim_lease(self) -> str | None:
        """Hold a lease, by whose file workers recognise this store, and return its name."""
        name = digest({"kind": "ray", "run": uuid.uuid4().hex})
        try:
            path = self.run.store.path("leases", name)
            self._lease = None if path is None else lease.claim(path)
        except OSError:
            return None
        return None if self._lease is None else name

    def _serve_calls(self) -> None:
        """The executor's thread: runs all calls that change its state, one after another."""
        try:
            self._listen()
            while (call := self._calls.get()) is not None:
                call()
                # Without --jobs Ray is given all tasks at once, for nodes that join during the run.
                most = self.run.placement.jobs or 1 << 30
                while self._waiting and len(self._running) < most and not self._ending:
                    self._launch(self._waiting.popleft())
        except BaseException as error:
            if not self._ending:
                self.post(error)

    def _launch(self, ticket: _Ticket) -> None:
        threads = resources.threads_for(self.run, ticket.job.record.get("arch"), self._share.threads)
        remote = self._serve.options(
            num_cpus=threads,
            num_gpus=self._share.gpus,
            max_retries=0,
            name=f"{self.run.tool} {ticket.job.place + 1}",
        )
        self._running[ticket.number] = ticket
        ticket.ref = remote.remote(__version__, self._spec, ticket.job, threads, self._inbox)
        ticket.ref.future().add_done_callback(
            lambda future: self._calls.put(lambda: self._answered(ticket, future))
        )

    def _answered(self, ticket: _Ticket, future: Future[executor.JobReport]) -> None:
        """Report a finished task; retry one that was lost with its machine or process."""
        if self._ending:
            self._cancelled.append(ticket)
        del self._running[ticket.number]
        if self._ending:
            return
        try:
            report = future.result()
        except Exception as error:
            if not {cls.__name__ for cls in type(error).__mro__}.intersection(_LOST):
                problem = f"A Ray worker could not do the work: {_in_words(error)}"
                problem += " Is the same rbtools on all nodes?"
            elif ticket.tries < TRIES:
                ticket.tries += 1
                self._waiting.appendleft(ticket)
                lost = f"A Ray worker was lost ({type(error).__name__}); its record is tried again."
                self.post(executor.Notice(lost))
                return
            else:
                problem = (
                    f"The Ray worker was lost {TRIES} times, at last with {type(error).__name__}:"
                    f" {_in_words(error)} If memory ran out, use more --threads (fewer tasks a node) or a"
                    " smaller --batch (rb-train: --batch-size)."
                )
            report = executor.JobReport(problem=problem)
        self.post(executor.Finished(ticket.job.place, report))

    def _listen(self) -> None:
        """Wait for the next status text of a worker."""
        future = self._inbox.drain.remote().future()
        future.add_done_callback(lambda done: self._calls.put(lambda: self._show(done)))

    def _show(self, future: Future[str]) -> None:
        if self._ending:  # no call may reach Ray while it shuts down: it would end the process
            return
        with contextlib.suppress(Exception):  # the actor is gone: only progress is lost
            self.post(executor.Progress(future.result()))
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


def serve(version: str, spec: bytes, job: executor.Job, threads: int, inbox: Any) -> executor.JobReport:
    """Run one job: the remote function."""
    node = socket.gethostname()
    if version != __version__:
        return executor.JobReport(
            problem=f"The Ray node {node} has rbtools {__version__}, driver {version}. Install one version on"
            " all nodes."
        )
    if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.SIG_DFL):
        with contextlib.suppress(ValueError):  # this is not the main thread
            # Ray stops a task by SIGINT, which a node started in the background ignores.
            signal.signal(signal.SIGINT, signal.default_int_handler)
    functions, run, folder, name = _loaded(spec)
    with contextlib.suppress(OSError):
        os.chdir(folder)
    if not sees(run, name):
        return executor.JobReport(
            problem=f"The Ray node {node} does not see the store {run.store.folder}. Name a folder that all"
            " nodes share with --store, or leave out --engine ray."
        )
    last = 0.0

    def progress(text: str) -> None:
        nonlocal last
        if time.monotonic() - last > _SECONDS_BETWEEN_PROGRESS:
            last = time.monotonic()
            inbox.progress.remote(text)

    return executor.run_on(job, functions, run.changed(threads=threads, progress=progress))


_last: tuple[bytes, RunSpec] | None = None


def _loaded(spec: bytes) -> RunSpec:
    """The specification of a run; one process serves many of its tasks with the same functions and store."""
    global _last
    if _last is None or _last[0] != spec:
        _last = spec, pickle.loads(spec)  # trusted: pickled by the driver of this run, sent by its own Ray
    return _last[1]


def sees(run: Run, name: str | None) -> bool:
    """Whether the run's store is the same folder on this machine as on the driver's."""
    if run.store.folder is None:
        return True
    if name is None:
        return False
    path = run.store.folder / "leases" / name[:2] / name
    # A network file system may cache that a file is missing: opening the folder refreshes that.
    with contextlib.suppress(OSError):
        os.listdir(path.parent)
    return path.exists()
