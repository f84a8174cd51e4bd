"""Joins a Ray cluster, and determines the resources of its nodes."""

from __future__ import annotations

import importlib
import logging
import os
import re
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools.errors import RbError, UsageError
from rbtools.execution.run import Run

if TYPE_CHECKING:
    from types import ModuleType


_SECONDS_TO_ANSWER = 3.0
_SECONDS_TO_JOIN = 20.0
_SECONDS_TO_START = 90.0  # seconds to start a cluster on a busy machine


class NodeShare(NamedTuple):
    """The resources that one task needs on a node, and the number of such tasks that can run at once.
    `threads` is the same on every node, so that results do not depend on the node."""

    device: str
    gpus: float
    threads: int
    capacity: int


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

        Without an address, the cluster is one that already runs on this machine, or a new cluster. The
        address is tested first, and joining has a time limit, because Ray waits minutes for an address that
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
                "--engine ray needs Ray, and ray is not installed: pip install 'rbtools[ray]'."
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
                f"The Ray cluster at {where} did not let us join within {limit:.0f} seconds. Check that"
                " this is its address (ray start --head prints it), and that this machine is part of it"
                " (ray start --address=...)."
            )
        if self._failed is not None:
            reason = " ".join(str(self._failed).split()) or type(self._failed).__name__
            raise RbError(f"Joining the Ray cluster at {where} failed: {reason}") from self._failed
        return self._ray

    def leave(self, holder: object, seconds: float) -> None:
        """Leave the cluster. After `seconds`, the end of the process closes the connection.

        `holder` stays alive until Ray has shut down: if one of its references is dropped earlier, Ray ends
        the process with status 1. `os._exit`, with which an interrupted command ends, drops no references.
        """
        self._holder = holder
        self._leaving.set()
        if self._joined.is_set():
            self._thread.join(seconds)

    def _stay(self) -> None:
        """Join the cluster, wait, and leave it. The main thread cannot do this, because joining may hang and
        Ray replaces the handler of SIGTERM; the processes that Ray starts end with this thread."""
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
            f"The Ray address {address} is for Ray's client. Run the tool on a machine of the cluster,"
            " with the cluster's own address, such as 10.0.0.1:6379."
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
    """The resources of a task. Raises RbError if no node of the cluster could ever run a task."""
    place = run.placement
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cores = sorted(int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1)
    cards = sum(int(node.get("GPU", 0)) for node in nodes)
    if re.fullmatch(r"cuda:\d+", place.device):
        raise UsageError(
            f"--device {place.device} names a GPU of one machine, but Ray chooses. Use --device cuda."
        )
    if place.device == "cuda" and not cards:
        raise RbError("The Ray cluster has no GPU. Use --device cpu or auto, or start nodes with GPUs.")
    if not cores or (place.threads or 1) > cores[-1]:
        most = f"at most {cores[-1]}" if cores else "none"
        raise RbError(
            f"A task takes {place.threads or 1} cores of one node, but the nodes of the Ray cluster"
            f" have {most}. Use fewer --threads, or start larger nodes."
        )
    if cards and place.device in ("auto", "cuda"):
        return NodeShare("cuda", 1 / place.jobs_per_gpu, place.threads or 1, cards * place.jobs_per_gpu)
    device = "cpu" if place.device == "auto" else place.device
    capacity = sum(count // (place.threads or 1) for count in cores)
    return NodeShare(device, 0.0, place.threads or cores[0], capacity)
