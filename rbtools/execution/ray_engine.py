"""The engine for a Ray cluster. Every call is a Ray task on a node that has access to the driver's store.

If a node is lost, Ray repeats its task, and the job continues from the results that the first attempt left in
the store. The driver holds a lease during the run. A worker recognises the store by the lease's file.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import pickle
import re
import signal
import socket
import threading
import time
from collections import deque
from concurrent.futures import Future
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools import __version__
from rbtools.errors import RbError, UsageError
from rbtools.execution import resources
from rbtools.execution.engine import Call, Engine, JobReport, run_job
from rbtools.execution.run import Run

if TYPE_CHECKING:
    from types import ModuleType

TRIES = 3  # one more than for local workers, because nodes are also lost for reasons outside the record
_SECONDS_TO_ANSWER = 3.0
_SECONDS_TO_JOIN = 20.0
_SECONDS_TO_START = 90.0  # seconds to start a cluster on a busy machine
_SECONDS_TO_STOP = 1.0
_SECONDS_WHEN_INTERRUPTED = 0.5
_SECONDS_WHEN_DONE = 60.0  # on a busy machine


class RunSpec(NamedTuple):
    """What the tasks of a run share. Paths are relative to `folder`; `mark` is a lease in the store."""

    run: Run
    folder: str
    mark: str | None


class NodeShare(NamedTuple):
    """The resources that one task needs on a node, and the number of such tasks that can run at once.
    `threads` is the same on every node, so that results do not depend on the node."""

    device: str
    gpus: float
    threads: int
    capacity: int


class RayEngine(Engine):
    """Runs calls on a Ray cluster. Entering the engine raises RbError if it cannot join the cluster."""

    own_capacity = True

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._waiting: deque[tuple[Call, Future[JobReport]]] = deque()
        # Running tasks by their references, which must not be dropped while Ray shuts down.
        self._running: dict[Any, Future[JobReport]] = {}
        self._membership = Membership(run.placement.address)
        self._held = contextlib.ExitStack()

    def __enter__(self) -> RayEngine:
        # Ray prints long reports on its nodes even without log_to_driver; our own messages take one line.
        nowhere = self._held.enter_context(open(os.devnull, "w"))
        self._held.enter_context(contextlib.redirect_stdout(nowhere))
        try:
            ray = self._ray = self._membership.join()
            self._share = share(ray, self.run)
            self.capacity = self.run.placement.jobs or self._share.capacity
            self.run = self.run.changed(device=self._share.device)
            mark = self._held.enter_context(self.run.store.working())
            spec = RunSpec(self.run.changed(jobs=1), os.getcwd(), mark)
            self._spec, self._serve = ray.put(pickle.dumps(spec)), ray.remote(serve)
        except BaseException:
            self.__exit__(True)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for ref in self._running:
            with contextlib.suppress(Exception):
                self._ray.cancel(ref, force=False)
        end = time.monotonic() + _SECONDS_TO_STOP
        while any(not future.done() for future in self._running.values()) and time.monotonic() < end:
            time.sleep(0.02)
        self._membership.leave(self, _SECONDS_WHEN_INTERRUPTED if any(error) else _SECONDS_WHEN_DONE)
        self._held.close()

    def submit(self, call: Call) -> Future[JobReport]:
        future: Future[JobReport] = Future()
        self._waiting.append((call, future))
        self._launch()
        return future

    def wait(self) -> None:
        self._launch()
        super().wait()

    def _launch(self) -> None:
        """Submit `--jobs` calls to Ray or, without `--jobs`, all calls, because nodes may join later."""
        for ref in [ref for ref, future in self._running.items() if future.done()]:
            del self._running[ref]
        while self._waiting and len(self._running) < (self.run.placement.jobs or 1 << 30):
            call, future = self._waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            threads = resources.threads_for(self.run, call.arch, self._share.threads)
            task = self._serve.options(
                num_cpus=threads, num_gpus=self._share.gpus, max_retries=TRIES - 1, name=self.run.tool
            )
            ref = task.remote(__version__, self._spec, call, threads)
            self._running[ref] = future
            ref.future().add_done_callback(lambda done, future=future: future.set_result(_report(done)))


def _report(done: Future[JobReport]) -> JobReport:
    try:
        return done.result()
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
        of_task = type(error).__name__.startswith("RayTaskError")  # its last line is the error itself
        text = f"{type(error).__name__}: {lines[-1] if of_task else lines[0]}".rstrip(".")
        return JobReport(
            problem=f"A Ray worker failed: {text}. Check that all nodes have the same rbtools. If memory ran"
            " out, use more --threads (fewer tasks a node) or a smaller --batch (rb-train: --batch-size)."
        )


# --- the cluster ------------------------------------------------------------------------------------


class Membership:
    """A connection to a cluster, which lasts from `join` to `leave`."""

    def __init__(self, address: str | None) -> None:
        self.address = address or os.environ.get("RAY_ADDRESS")
        self._ray: Any = None
        self._failed: BaseException | None = None
        self._holder: object = None
        self._joined, self._leaving = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._stay, daemon=True)

    def join(self) -> Any:
        """Join the cluster and return the `ray` module. Raises RbError.

        Without an address, it joins a cluster that already runs on this machine, or starts a new one. The
        address is tested first, and joining has a time limit, because Ray waits for minutes if an address
        does not answer.
        """
        # A cluster that we start sends no usage statistics. Ray reads this when it is imported.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            self._ray = importlib.import_module("ray")
        except ModuleNotFoundError as error:
            if error.name != "ray":
                raise
            raise UsageError(
                "--engine ray needs Ray, which is not installed. Install it with pip install 'rbtools[ray]'."
            ) from None
        if self.address:
            _ask(self.address)
        self._thread.start()
        limit = _SECONDS_TO_START if self.address in (None, "local") else _SECONDS_TO_JOIN
        in_time = self._joined.wait(limit)
        if threading.current_thread() is threading.main_thread():
            # Ray installs a C handler that prints a stack on SIGTERM; this restores Python's.
            signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        where = self.address or "this machine"
        if not in_time:
            raise RbError(
                f"The Ray cluster at {where} could not be joined within {limit:.0f} seconds. Check that its"
                " address is right (ray start --head prints it), and that this machine is part of it (ray"
                " start --address=...)."
            )
        if self._failed is not None:
            reason = " ".join(str(self._failed).split()) or type(self._failed).__name__
            raise RbError(f"Joining the Ray cluster at {where} failed: {reason}") from self._failed
        return self._ray

    def leave(self, holder: object, seconds: float) -> None:
        """Leave the cluster, waiting at most `seconds`; after that, the connection closes with the process.

        `holder` stays alive until Ray has shut down: if one of its references is dropped earlier, Ray ends
        the process with status 1. An interrupted command ends with `os._exit`, which drops no references.
        """
        self._holder = holder
        self._leaving.set()
        if self._joined.is_set():
            self._thread.join(seconds)

    def _stay(self) -> None:
        """Join the cluster, wait, and leave it. The main thread cannot do this, because joining may hang, and
        Ray replaces the handler for SIGTERM. The processes that Ray starts end with this thread."""
        try:
            self._ray.init(
                address=self.address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                include_dashboard=False,
            )
        except BaseException as error:
            self._failed = error
        self._joined.set()
        self._leaving.wait()
        if self._failed is None:
            self._ray.shutdown()
        self._holder = None


def _ask(address: str) -> None:
    """Raise RbError if nothing listens at the address, and UsageError if the address is invalid."""
    if address in ("auto", "local"):
        return
    if address.startswith("ray://"):
        raise UsageError(
            f"The Ray address {address} is for the Ray client. Run the tool on a machine of the cluster, with"
            " an address such as 10.0.0.1:6379."
        )
    match = re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^:/\s]+):(\d+)", address)
    if match is None or not 0 < int(match[2]) < 65536:
        raise UsageError(
            f"The Ray address is '{address}'. Expected HOST:PORT, such as 10.0.0.1:6379, or auto."
        )
    try:
        socket.create_connection((match[1].strip("[]"), int(match[2])), _SECONDS_TO_ANSWER).close()
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise RbError(
            f"No Ray cluster answers at {address}: {reason}. Start one (ray start --head), check the address,"
            " or leave out --engine ray."
        ) from None


def share(ray: ModuleType, run: Run) -> NodeShare:
    """The resources of a task. Raises RbError if no node of the cluster can run a task."""
    place = run.placement
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cores = sorted(int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1)
    cards = sum(int(node.get("GPU", 0)) for node in nodes)
    if re.fullmatch(r"cuda:\d+", place.device):
        raise UsageError(
            f"--device {place.device} names a specific GPU, but Ray chooses the GPUs. Use --device cuda."
        )
    if place.device == "cuda" and not cards:
        raise RbError("The Ray cluster has no GPU. Use --device cpu or auto, or start nodes with GPUs.")
    if not cores or (place.threads or 1) > cores[-1]:
        most = f"at most {cores[-1]}" if cores else "none"
        raise RbError(
            f"A task needs {place.threads or 1} cores of one node, but the nodes of the Ray cluster have"
            f" {most}. Use fewer --threads, or start larger nodes."
        )
    if cards and place.device in ("auto", "cuda"):
        return NodeShare("cuda", 1 / place.jobs_per_gpu, place.threads or 1, cards * place.jobs_per_gpu)
    device = "cpu" if place.device == "auto" else place.device
    capacity = sum(count // (place.threads or 1) for count in cores)
    return NodeShare(device, 0.0, place.threads or cores[0], capacity)


# --- in the worker ----------------------------------------------------------------------------------


def serve(version: str, spec: bytes, call: Call, threads: int) -> JobReport:
    """The remote function, which runs one call."""
    node = socket.gethostname()
    if version != __version__:
        return JobReport(
            problem=f"The Ray node {node} has rbtools {__version__}, but the driver has {version}. Install"
            " the same version on all nodes."
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
    return run_job(call, run.changed(threads=threads))


@lru_cache(maxsize=1)
def _loaded(spec: bytes) -> RunSpec:
    """The specification of a run, cached because one process serves many tasks with the same store."""
    return pickle.loads(spec)  # trusted: pickled by the driver of this run, sent by its own Ray


def sees(run: Run, mark: str | None) -> bool:
    """Whether the run's store is the same folder on this machine as on the driver's machine."""
    if run.store.folder is None:
        return True
    if mark is None:
        return False
    path = run.store.folder / "leases" / mark[:2] / mark
    # A network file system may remember that a file was missing; listing its folder refreshes this.
    with contextlib.suppress(OSError):
        os.listdir(path.parent)
    return path.exists()
