"""Workers on a Ray cluster, with the face of `rbtools.execution.local.LocalExecutor`.

Every record is a Ray task. Ray runs it where there is room; retries are ours, so that a second
try starts from what the first one left in the store.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rbtools import __version__
from rbtools.errors import RbError
from rbtools.execution import resources
from rbtools.execution.context import RunContext
from rbtools.execution.job import JobFunction, JobReport
from rbtools.execution.local import Finished, Job, Notice
from rbtools.execution.ray import cluster
from rbtools.execution.ray.worker import Answer, Inbox, RayTask, RunSpec, serve
from rbtools.store import lease
from rbtools.store.checksum import digest
from rbtools.store.remote_proxy import File, export_file, import_file, is_whole

# Nodes of a cluster come and go through no fault of the record, so it gets one try more than here.
TRIES = 3
_SECONDS_TO_STOP = 1.0
_SECONDS_TO_LEAVE = 0.5
_SECONDS_FOR_MAIL = 0.2  # what stopped tasks found is on its way
# Errors that tell of a lost machine or process, not of the work.
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
    """A task on its way, and what became of it so far."""

    task: Job
    number: int
    tries: int = 1
    wants: set[File] = dataclasses.field(default_factory=set)
    ref: Any = None


class RayExecutor:
    """Tasks on a Ray cluster; `Finished` and `Said` arrive in `events`.

    Use as a context: entering it joins the cluster, leaving it stops the tasks, which keep what they
    have found so far. `size` is how many tasks there are room for at once. Raises RbError on entering.
    """

    def __init__(self, works: Sequence[JobFunction], run: RunContext, events: queue.SimpleQueue[Any]) -> None:
        self.works, self.run, self.events = works, run, events
        self.store = run.store
        self.size = 1
        self._inbox: queue.SimpleQueue[tuple[str, Any, Any]] = queue.SimpleQueue()
        self._running: dict[int, _Ticket] = {}
        self._unfinished: set[int] = set()  # numbers of tickets whose mail counts
        self._unseen = False  # whether some worker does not see the store
        self._waiting: deque[_Ticket] = deque()
        self._given = 0
        self._ending = False
        self._lease: lease.Lease | None = None
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self._membership = cluster.Membership(run.ray_address)
        self._hush = contextlib.ExitStack()

    def __enter__(self) -> RayExecutor:
        # Ray prints what happens to its nodes, at length, log_to_driver or not; we say it ourselves.
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
            self.size = self.run.jobs or self._share.capacity
            run = dataclasses.replace(self.run, device=self._share.device, jobs=1)
            self._orders = ray.put(pickle.dumps(RunSpec(list(self.works), run, os.getcwd(), self._marked())))
            near = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                ray.get_runtime_context().get_node_id(), soft=True
            )
            self._mail = ray.remote(Inbox).options(num_cpus=0, scheduling_strategy=near).remote()
            self._serve = ray.remote(serve)
        except BaseException:
            self._leave()
            raise

    def submit(self, task: Job) -> None:
        """Hand a task in; it starts as soon as there is room for it."""
        self._inbox.put(("task", task, None))

    def __exit__(self, *_: object) -> None:
        self._ending = True
        for ticket in list(self._running.values()):
            with contextlib.suppress(Exception):
                self._ray.cancel(ticket.ref, force=False)
        end = time.monotonic() + _SECONDS_TO_STOP
        while self._running and time.monotonic() < end:
            time.sleep(0.02)
        if self._unseen:
            time.sleep(_SECONDS_FOR_MAIL)
        self._inbox.put(("end", None, None))
        self._thread.join(_SECONDS_TO_LEAVE)
        self._leave()
        self._hush.close()

    def _leave(self) -> None:
        self._membership.leave()
        if self._lease is not None:
            self._lease.release()

    def _marked(self) -> str | None:
        """Hold a lease whose file shows workers that they see this very store; its name."""
        name = digest({"kind": "ray", "run": uuid.uuid4().hex})
        try:
            path = self.store.path("leases", name)
            self._lease = None if path is None else lease.claim(path)
        except OSError:
            return None
        return None if self._lease is None else name

    def _guarded(self) -> None:
        try:
            self._listen()
            while self._handle(*self._inbox.get()):
                while self._waiting and len(self._running) < self._limit() and not self._ending:
                    self._launch(self._waiting.popleft())
        except BaseException as error:
            if not self._ending:
                self.events.put(error)

    def _limit(self) -> int:
        """Tasks given to Ray at once. Without --jobs all that come, for nodes that join while we run."""
        return self.run.jobs or 1 << 30

    def _handle(self, kind: str, what: Any, future: Any) -> bool:
        if kind == "task":
            self._given += 1
            self._waiting.append(_Ticket(what, self._given))
        elif kind == "mail":
            self._open(future)
        elif kind == "answer":
            del self._running[what.number]
            self._answered(what, future)
        return kind != "end"

    # --- tasks ------------------------------------------------------------------------------------

    def _launch(self, ticket: _Ticket) -> None:
        record = ticket.task.record
        threads = resources.threads_for(self.run, record.get("arch"), self._share.threads)
        known = {file: self._lent(file, ticket) for file in ticket.wants}
        errand = RayTask(ticket.number, ticket.task.work, record, threads, known)
        task = self._serve.options(
            num_cpus=threads,
            num_gpus=self._share.gpus,
            max_retries=0,
            name=f"{self.run.tool} {ticket.task.place + 1}",
        )
        self._running[ticket.number] = ticket
        self._unfinished.add(ticket.number)
        ticket.ref = task.remote(__version__, self._orders, errand, self._mail)
        ticket.ref.future().add_done_callback(lambda future: self._inbox.put(("answer", ticket, future)))

    def _lent(self, file: File, ticket: _Ticket) -> bytes | None:
        data = export_file(self.store, *file)
        path = ticket.task.record.get("checkpoint_file")
        if data is None and file[0] == "objects" and isinstance(path, str):
            with contextlib.suppress(OSError):
                data = Path(path).read_bytes()
                return data if is_whole(*file, data) else None
        return data

    def _answered(self, ticket: _Ticket, future: Any) -> None:
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
        self.events.put(Finished(ticket.task.place, report))

    def _keep(self, answer: Answer) -> str | None:
        """Put what a worker without the store has made into it; why that failed, where it did."""
        for kind, name in sorted(answer.files):  # objects first: a result must not name what is not there
            try:
                import_file(self.store, kind, name, answer.files[kind, name])
            except RbError as error:
                if kind == "objects":
                    return str(error)
                self.store.trouble = str(error)
        for key in answer.dropped:
            self.store.drop_state(key)
        return None

    def _failed(self, ticket: _Ticket, error: Exception) -> None:
        """A task without an answer: another try where a machine or process was lost, else an error."""
        names = {cls.__name__ for cls in type(error).__mro__}
        text = _in_words(error)
        if not names.intersection(_LOST):
            problem = f"A Ray worker could not do the work: {text} Is the same rbtools on all nodes?"
        elif ticket.tries < TRIES:
            ticket.tries += 1
            self._waiting.appendleft(ticket)
            lost = f"A Ray worker was lost ({type(error).__name__}); its record is tried again."
            self.events.put(Notice(lost, warning=True))
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
        future = self._mail.drain.remote().future()
        future.add_done_callback(lambda done: self._inbox.put(("mail", None, done)))

    def _open(self, future: Any) -> None:
        try:
            files, words = future.result()
        except Exception:
            return  # the actor is gone, and with it no more than progress and unfinished states
        for (number, kind, name), data in files.items():
            if number in self._unfinished:  # not a state that is late: its training may be done
                with contextlib.suppress(RbError):
                    import_file(self.store, kind, name, data)
        if words:
            self.events.put(Notice(words))
        self._listen()


def _in_words(error: Exception) -> str:
    """The last line of what Ray says, which is the error itself, as one sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if type(error).__name__.startswith("RayTaskError") and lines else " ".join(lines[:1])
    return text if text.endswith(".") else f"{text}."
