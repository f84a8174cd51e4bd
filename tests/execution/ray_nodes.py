"""A real Ray cluster of two nodes on this machine's loopback, for the tests.

Every node is a `ray start` in a session of its own, so that it can be killed like a failing machine: all its
processes at once, without notice.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_SECONDS_TO_START = 300.0
_TRIES_TO_START = 5  # Ray itself gives a node 30 seconds, which a busy machine may exceed
_SETTINGS = {
    "OMP_NUM_THREADS": "1",
    # By default workers run at nice 15: beside other processes they get next to no time (50 times less).
    "RAY_worker_niceness": "0",
    # A node is dead when its connections break, and not already when it answers late.
    "RAY_health_check_timeout_ms": "60000",
}
_STORE_BYTES = 80_000_000  # Ray's smallest object store is 75 MB


class Cluster:
    """Two nodes with `cpus` cores each. Tools join at `address`, with `access` in their environment."""

    def __init__(self, cpus: int = 1) -> None:
        # Not below the caller's folder: Ray makes sockets in it, whose paths have to be short.
        self.folder = Path(tempfile.mkdtemp(prefix="rb-ray-", dir="/tmp"))
        self._cpus = cpus
        # Ray listens on all of the machine's addresses: only holders of the token may run code on it.
        self.access = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self._environment = {**os.environ, **self.access, **_SETTINGS}
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            options = ["--head", "--port=0", "--include-dashboard=false", f"--temp-dir={self.folder}"]
            self._start("head", "127.0.0.2", *options)
            self.address = self._address_of_head()
            self.start_second()
        except BaseException:
            self.stop()
            raise

    def start_second(self) -> None:
        """Start the second node, or start it again."""
        self.kill_second()
        self._start("second", "127.0.0.3", f"--address={self.address}")

    def kill_second(self) -> None:
        """Kill all processes of the second node at once, if there is one."""
        if "second" in self._nodes:
            self._kill("second")

    def stop(self) -> None:
        """Leave no process and no file behind."""
        for name in list(self._nodes):
            self._kill(name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def tasks(self, name: str) -> list[int]:
        """The processes that work on a task on that node ("head" or "second") just now."""
        return [pid for pid in of_session(self._nodes[name].pid) if _title(pid).startswith("ray::rb-")]

    def _start(self, name: str, ip: str, *options: str) -> None:
        end = time.monotonic() + _SECONDS_TO_START
        log = self.folder / f"{name}.log"
        for tries_left in reversed(range(_TRIES_TO_START)):
            self._launch(name, ip, log, *options)
            while "Ray runtime started" not in (text := log.read_text("utf-8", "replace")):
                if self._nodes[name].poll() is not None or time.monotonic() > end:
                    break
                time.sleep(0.1)
            else:
                return
            self._kill(name)
            if not tries_left or "timed out during startup" not in text:
                raise RuntimeError(f"ray start ({name}) failed: {text}")

    def _address_of_head(self) -> str:
        """The address that the head writes into its folder a moment after it says that it runs."""
        end = time.monotonic() + _SECONDS_TO_START
        path = self.folder / "ray_current_cluster"
        while not (path.exists() and (address := path.read_text().strip())):
            if self._nodes["head"].poll() is not None or time.monotonic() > end:
                log = (self.folder / "head.log").read_text("utf-8", "replace")
                raise RuntimeError(f"the head of the Ray cluster wrote no address: {log}")
            time.sleep(0.1)
        return address

    def _launch(self, name: str, ip: str, log: Path, *options: str) -> None:
        # Ports of workers are any free ones: nodes of one machine must not share a range.
        fixed = "--num-gpus=0 --min-worker-port=0 --max-worker-port=0 --disable-usage-stats".split()
        sizes = [f"--num-cpus={self._cpus}", f"--object-store-memory={_STORE_BYTES}"]
        ray = [str(Path(sys.executable).parent / "ray"), "start", "--block", f"--node-ip-address={ip}"]
        with log.open("wb") as stream:
            self._nodes[name] = subprocess.Popen(
                [*ray, *fixed, *sizes, *options],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=self._environment,
                start_new_session=True,
            )

    def _kill(self, name: str) -> None:
        node = self._nodes.pop(name)
        while processes := of_session(node.pid):
            for pid in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            node.poll()  # take its status, or it stays in the list
            time.sleep(0.05)
        node.wait()


def of_session(session: int) -> list[int]:
    """The processes of a session, but for those that have ended and only wait to be noticed."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state = stat.read_text().rpartition(")")[2].split()
            if int(state[3]) == session and state[0] != "Z":
                found.append(int(stat.parent.name))
    return found


def _title(pid: int) -> str:
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""
