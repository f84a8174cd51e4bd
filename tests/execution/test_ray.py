"""`--engine ray` on a real cluster: two nodes on this machine, started and stopped here.

They take a few hundred MB, so one cluster runs at a time, whatever the number of test processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.execution.ray_nodes import Cluster
from tests.runner import timeless

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.extra,
    pytest.mark.skipif(sys.platform != "linux", reason="the nodes' addresses, 127.0.0.2 and on, are Linux's"),
]

PATIENCE = 600  # seconds for what a busy machine may delay
TRAIN = "rb-train --epochs 3 --batch-size 256"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with open(Path(tempfile.gettempdir(), f"rbtools-test-ray-{os.getuid()}"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        started = Cluster(cpus=2)
        try:
            yield started
        finally:
            started.stop()


@pytest.fixture(scope="module")
def archs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of four small architectures."""
    line = ["rb-arch", "--sample", "4", "--seed", "1", "--cells", "1", "--channels", "4"]
    path = tmp_path_factory.mktemp("archs") / "archs.jsonl"
    path.write_bytes(subprocess.run(line, capture_output=True, timeout=PATIENCE, check=True).stdout)
    return path


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, archs: Path) -> Path:
    """What one local worker makes of them: a file of records."""
    folder = tmp_path_factory.mktemp("alone")
    line = f"{TRAIN} --store s {archs} > trained.jsonl"
    subprocess.run(["bash", "-c", line], cwd=folder, timeout=PATIENCE, check=True)
    return folder / "trained.jsonl"


def steady(output: bytes) -> Any:
    """Records of an output, without times and command lines; every line has to be one."""
    return timeless([json.loads(line) for line in output.splitlines()])


class Tool(contextlib.AbstractContextManager["Tool"]):
    """A tool on the cluster, in a session of its own."""

    def __init__(self, cluster: Cluster, line: str) -> None:
        self.process = subprocess.Popen(
            [*line.split(), "--engine", "ray", "--ray-address", cluster.address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **cluster.access},
            start_new_session=True,
        )
        assert self.process.stdout and self.process.stderr
        self.output, self.errors = self.process.stdout, self.process.stderr

    def ended(self) -> tuple[int, list[dict[str, Any]], list[str]]:
        """Status, records and lines on standard error."""
        output, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, steady(output), errors.decode().splitlines()

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.output.close()
        self.errors.close()


def wait_for(what: Callable[[], Any], tool: Tool) -> None:
    """Wait until it happens; a tool that has ended before is a failure."""
    end = time.monotonic() + PATIENCE
    while not what():
        assert tool.process.poll() is None, tool.ended()
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def test_a_node_killed_in_the_middle_loses_nothing(cluster: Cluster, archs: Path, alone: Path) -> None:
    try:
        with Tool(cluster, f"{TRAIN} {archs}") as tool:
            wait_for(lambda: cluster.tasks("second") and list(Path("rb-store").glob("state/*/*")), tool)
            cluster.kill_second()
            status, found, errors = tool.ended()
        assert found == steady(alone.read_bytes())  # in their order
        assert (status, errors[-1]) == (0, "rb-train: 4 records: 4 computed, 0 found in the store."), errors
        assert not list(Path("rb-store").glob("leases/*/*"))
    finally:
        cluster.start_second()


def test_interruptions_end_in_two_seconds_and_keep_what_was_found(cluster: Cluster, archs: Path) -> None:
    line = f"rb-train --epochs 1000 --lr 0.01 --shard 1/4 {archs} --store"
    ways: dict[str, tuple[int, Callable[[Tool], Any]]] = {
        "interrupted": (130, lambda tool: tool.process.send_signal(signal.SIGINT)),
        "terminated": (143, lambda tool: tool.process.send_signal(signal.SIGTERM)),
        "gone": (141, lambda tool: tool.output.close()),
    }
    with contextlib.ExitStack() as tools:
        started = {way: tools.enter_context(Tool(cluster, f"{line} {way}")) for way in ways}
        for way, (status, end) in ways.items():
            wait_for(lambda: list(Path(way).glob("state/*/*")), started[way])  # noqa: B023
            end(started[way])
            assert started[way].process.wait(PATIENCE) == status
            wanted = f"rb-train: error: {way}; finished results were written and stored.\n"
            assert started[way].errors.read().decode() == ("" if way == "gone" else wanted)
            assert not list(Path(way).glob("leases/*/*"))
