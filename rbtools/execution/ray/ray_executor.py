"""The executor on a Ray cluster: every job is a Ray task.

Ray decides where a task runs. The executor, not Ray, retries tasks, so that a second try starts from what the
first one left in the store.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rbtools import __version__
from rbtools.errors import RbError
from rbtools.execution import resources
from rbtools.execution.executor import Executor, Finished, Job, Notice, Progress
from rbtools.execution.job import JobFunction, JobReport
from rbtools.execution.ray import cluster
from rbtools.execution.ray.worker import Answer, Inbox, RayTask, RunSpec, serve
from rbtools.execution.run import Run
from rbtools.plain_files import read_plain
from rbtools.store import lease
from rbtools.store.checksum import digest
from rbtools.store.remote_proxy import File, export_file, import_file, is_name, is_whole

if TYPE_CHECKING:
    from concurrent.futures import Future


# Nodes of a cluster come and go through no fault of the record: one try more than for local workers.
TRIES = 3
_SECONDS_TO_STOP = 1.0
_SECONDS_TO_LEAVE = 0.5
_SECONDS_FOR_FILES = 0.2  # wait for unfinished states that stopped tasks have sent
# Names of Ray's errors for a lost machine or process; others mean that the job failed.
_LOST = (
    "NodeDiedError",
    "WorkerCrashedError",
    "ObjectLostError",
    "OutOfMemoryError",
    "LocalRayletDiedError",
    "RaySystemError",
)


@dataclasses.dataclass
class _Ticket:
    """A submitted job, and the state of its Ray task."""

    job: Job
    number: int
    tries: int = 1
    wants: set[File] = dataclasses.field(default_factory=set)
    ref: Any = None


class RayExecutor(Executor):
    """Jobs on a Ray cluster.

    Entering it joins the cluster, leaving it stops the tasks, whose finished work is stored. Raises RbError
    on entering.
    """

    own_capacity = True

    def __init__(self, functions: Sequence[JobFunction], run: Run) -> None:
        super().__init__(functions, run)
        self.store = run.store
        # Calls for the executor's thread, in order; None ends it.
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._running: dict[int, _Ticket] = {}
        self._unfinished: set[int] = set()  # numbers of tickets whose files in the inbox are kept
        self._unseen = False  # whether some worker does not see the store
        self._waiting: deque[_Ticket] = deque()
        self._count = 0
        self._ending = False
        self._lease: lease.Lease | None = None
        self._thread = threading.Thread(target=self._serve_calls, daemon=True)
        self._membership = cluster.Membership(run.placement.address)
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
            self._share = cluster.share(ray, self.run)
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
            self._leave()
            raise

    def submit(self, job: Job) -> None:
        """Submit a job; it starts as soon as there is room for it."""
        self._calls.put(lambda: self._add(job))

    def __exit__(self, *error: object) -> None:
        self._ending = True
        self._cancel()
        end = time.monotonic() + _SECONDS_TO_STOP
        while self._running and time.monotonic() < end:
            time.sleep(0.02)
        if self._unseen:
            time.sleep(_SECONDS_FOR_FILES)
        self._calls.put(None)
        self._thread.join(_SECONDS_TO_LEAVE)
        self._leave()
        self._hush.close()

    def _cancel(self) -> None:
        for ticket in list(self._running.values()):
            with contextlib.suppress(Exception):
                self._ray.cancel(ticket.ref, force=False)

    def _leave(self) -> None:
        self._membership.leave(holder=self)
        if self._lease is not None:
            self._lease.release()

    def _claim_lease(self) -> str | None:
        """Hold a lease, by whose file workers recognise this store, and return its name."""
        name = digest({"kind": "ray", "run": uuid.uuid4().hex})
        try:
            path = self.store.path("leases", name)
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
                while self._waiting and len(self._running) < self._limit() and not self._ending:
                    self._launch(self._waiting.popleft())
        except BaseException as error:
            if not self._ending:
                self.post(error)

    def _limit(self) -> int:
        """The most tasks given to Ray at once. Without --jobs all, for nodes that join during the run."""
        return self.run.placement.jobs or 1 << 30

    # --- tasks ------------------------------------------------------------------------------------

    def _add(self, job: Job) -> None:
        self._count += 1
        self._waiting.append(_Ticket(job, self._count))

    def _launch(self, ticket: _Ticket) -> None:
        record = ticket.job.record
        threads = resources.threads_for(self.run, record.get("arch"), self._share.threads)
        known = {file: self._export(file, ticket) for file in ticket.wants}
        task = RayTask(ticket.number, ticket.job.function, record, ticket.job.helps, threads, known)
        remote = self._serve.options(
            num_cpus=threads,
            num_gpus=self._share.gpus,
            max_retries=0,
            name=f"{self.run.tool} {ticket.job.place + 1}",
        )
        self._running[ticket.number] = ticket
        self._unfinished.add(ticket.number)
        ticket.ref = remote.remote(__version__, self._spec, task, self._inbox)
        ticket.ref.future().add_done_callback(
            lambda future: self._calls.put(lambda: self._answered(ticket, future))
        )

    def _export(self, file: File, ticket: _Ticket) -> bytes | None:
        data = export_file(self.store, *file)
        path = ticket.job.record.get("checkpoint_file")
        if data is None and file[0] == "objects" and isinstance(path, str):
            with contextlib.suppress(OSError):
                data = read_plain(path)
                return data if is_whole(*file, data) else None
        return data

    def _answered(self, ticket: _Ticket, future: Future[Any]) -> None:
        del self._running[ticket.number]
        if self._ending:
            with contextlib.suppress(Exception):
                self._keep(future.result())
            return
        try:
            answer: Answer = future.result()
        except Exception as error:
            self._failed(ticket, error)
            return
        problem = self._keep(answer)
        if answer.report is None and not problem:
            if answer.wants <= ticket.wants:
                problem = "A Ray worker asks again and again for the same files (a bug in rbtools)."
            else:
                self._unseen = True
                ticket.wants |= answer.wants
                self._waiting.appendleft(ticket)
                return
        self._finish(ticket, JobReport(problem=problem) if problem or not answer.report else answer.report)

    def _finish(self, ticket: _Ticket, report: JobReport) -> None:
        self._unfinished.discard(ticket.number)
        report.damaged += [str(path) for path in self.store.damaged]
        self.store.damaged.clear()
        report.trouble, self.store.trouble = report.trouble or self.store.trouble, None
        self.post(Finished(ticket.job.place, report))

    def _keep(self, answer: Answer) -> str | None:
        """Put the files of a worker that does not see the store into it; if that fails, return why."""
        for kind, name in sorted(answer.files):  # objects first: a result must not refer to a missing one
            try:
                import_file(self.store, kind, name, answer.files[kind, name])
            except RbError as error:
                if kind == "objects":
                    return str(error)
                self.store.trouble = str(error)
        for key in filter(is_name, answer.dropped):
            self.store.drop_state(key)
        return None

    def _failed(self, ticket: _Ticket, error: Exception) -> None:
        """Retry a task without an answer if a machine or process was lost; else report an error."""
        names = {cls.__name__ for cls in type(error).__mro__}
        text = _in_words(error)
        if not names.intersection(_LOST):
            problem = f"A Ray worker could not do the work: {text} Is the same rbtools on all nodes?"
        elif ticket.tries < TRIES and not ticket.job.helps:
            ticket.tries += 1
            self._waiting.appendleft(ticket)
            lost = f"A Ray worker was lost ({type(error).__name__}); its record is tried again."
            self.post(Notice(lost))
            return
        else:
            problem = (
                f"The Ray worker was lost {TRIES} times, at last with {type(error).__name__}: {text} If"
                " memory ran out, use more --threads (fewer tasks a node) or a smaller --batch (rb-train:"
                " --batch-size)."
            )
        self._finish(ticket, JobReport(problem=problem))

    # --- what workers send while they work --------------------------------------------------------

    def _listen(self) -> None:
        future = self._inbox.drain.remote().future()
        future.add_done_callback(lambda done: self._calls.put(lambda: self._take_in(done)))

    def _take_in(self, future: Future[Any]) -> None:
        try:
            files, text = future.result()
        except Exception:
            return  # the actor is gone; only progress and unfinished states are lost
        for (number, kind, name), data in files.items():
            if number in self._unfinished:  # a late state may belong to a finished training
                with contextlib.suppress(RbError):
                    import_file(self.store, kind, name, data)
        if text:
            self.post(Progress(text))
        self._listen()


def _in_words(error: Exception) -> str:
    """The last line of Ray's message, the error itself, as one sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if type(error).__name__.startswith("RayTaskError") and lines else " ".join(lines[:1])
    return text if text.endswith(".") else f"{text}."
