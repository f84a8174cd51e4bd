"""The engine for a Ray cluster. Every call is a Ray task on a node that has access to the driver's store.

If a node is lost, Ray tries its task again, and the job continues from the results that the first try left in
the store. The driver holds a lease during the run. A worker recognises the store by the file of this lease.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import time
from collections import deque
from concurrent.futures import Future
from functools import lru_cache
from typing import Any, NamedTuple

from rbtools import __version__
from rbtools.execution import ray_cluster, resources
from rbtools.execution.engine import Call, Engine, JobReport, run_job
from rbtools.execution.run import Run

TRIES = 3  # one more than for local workers, because nodes are also lost for reasons outside the record
_SECONDS_TO_STOP = 1.0
_SECONDS_WHEN_INTERRUPTED = 0.5
_SECONDS_WHEN_DONE = 60.0  # on a busy machine


class RunSpec(NamedTuple):
    """The common part of all tasks. Paths are relative to `folder`; `mark` is a lease in the store."""

    run: Run
    folder: str
    mark: str | None


class RayEngine(Engine):
    """Runs calls on a Ray cluster. Entering raises RbError if joining the cluster fails."""

    own_capacity = True

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._waiting: deque[tuple[Call, Future[JobReport]]] = deque()
        # Running tasks by their references, which must not be dropped while Ray shuts down.
        self._running: dict[Any, Future[JobReport]] = {}
        self._membership = ray_cluster.Membership(run.placement.address)
        self._held = contextlib.ExitStack()

    def __enter__(self) -> RayEngine:
        # Ray prints long reports on its nodes even without log_to_driver; our own messages take one line.
        nowhere = self._held.enter_context(open(os.devnull, "w"))
        self._held.enter_context(contextlib.redirect_stdout(nowhere))
        try:
            ray = self._ray = self._membership.join()
            self._share = ray_cluster.share(ray, self.run)
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
            problem=f"A Ray worker could not do the work: {text}. Is the same rbtools on all nodes? If memory"
            " ran out, use more --threads (fewer tasks a node) or a smaller --batch (rb-train: --batch-size)."
        )


# --- in the worker ----------------------------------------------------------------------------------


def serve(version: str, spec: bytes, call: Call, threads: int) -> JobReport:
    """The remote function, which runs one call."""
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
    return run_job(call, run.changed(threads=threads))


@lru_cache(maxsize=1)
def _loaded(spec: bytes) -> RunSpec:
    """The specification of a run, cached because one process serves many tasks with the same store."""
    return pickle.loads(spec)  # trusted: pickled by the driver of this run, sent by its own Ray


def sees(run: Run, mark: str | None) -> bool:
    """Whether the run's store is the same folder on this machine and on the driver's machine."""
    if run.store.folder is None:
        return True
    if mark is None:
        return False
    path = run.store.folder / "leases" / mark[:2] / mark
    # A network file system may cache that a file is missing: opening the folder refreshes that.
    with contextlib.suppress(OSError):
        os.listdir(path.parent)
    return path.exists()
