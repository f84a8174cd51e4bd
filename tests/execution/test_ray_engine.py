"""Both sides of `--engine ray` with a stand-in for Ray, whose tasks are threads; a real one: test_ray.py."""

from __future__ import annotations

import dataclasses
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rbtools import __version__
from rbtools.errors import RbError, UsageError
from rbtools.execution import ray_engine
from rbtools.execution.engine import Job, JobFunction, JobReport
from rbtools.execution.ray_engine import RayEngine
from rbtools.execution.run import Run
from rbtools.store import Store

PATIENCE = 300  # seconds for what a busy machine may delay


class NodeDiedError(Exception):
    """Ray's."""


class Ref:
    """What `.remote()` gives."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def future(self) -> Future[Any]:
        return self._future


class Remote:
    """A function of the stand-in."""

    def __init__(self, ray: FakeRay, thing: Any) -> None:
        self._ray, self._thing = ray, thing

    def options(self, **options: Any) -> Remote:
        self._ray.options.append(options)
        return self

    def remote(self, *args: Any) -> Any:
        return Ref(self._ray.threads.submit(self._ray.task, self._thing, *args))


class FakeRay:
    """The part of the `ray` module that the engine uses."""

    def __init__(self) -> None:
        self.resources: list[dict[str, float]] = [{"CPU": 2.0}]
        self.failures: list[Exception] = []
        self.options: list[dict[str, Any]] = []
        self.cancelled = 0
        self.joined = False
        self.left = threading.Event()
        self.threads = ThreadPoolExecutor(8)

    def task(self, function: Callable[..., Any], *args: Any) -> Any:
        if self.failures:
            raise self.failures.pop(0)
        return function(*args)

    def init(self, **options: Any) -> None:
        assert options["log_to_driver"] is False
        self.joined = True

    def shutdown(self) -> None:
        self.left.set()

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": one} for one in self.resources] + [
            {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}
        ]

    def put(self, value: Any) -> Any:
        return value

    def remote(self, thing: Any) -> Remote:
        return Remote(self, thing)

    def cancel(self, ref: Ref, force: bool) -> None:
        self.cancelled += 1


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray_engine._loaded.cache_clear()
    before = signal.getsignal(signal.SIGTERM)
    yield fake
    assert signal.getsignal(signal.SIGTERM) is before
    fake.threads.shutdown(wait=True)


def run_with(store: str | None = "rb-store", **options: Any) -> Run:
    return Run.of(tool="rb-train", store=Store(store), engine="ray", jobs=0, **options)


def reports(run: Run, *given: dict[str, Any]) -> list[JobReport]:
    """What becomes of records, in the order they were handed in."""
    with RayEngine(run) as engine:
        found = dict(engine.map(Job(Echo(), record) for record in given))
    return [found[place] for place in sorted(found)]


@dataclasses.dataclass(frozen=True)
class Echo(JobFunction):
    """A work that needs no store and no torch."""

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        if record.get("wrong"):
            raise RbError("This cannot be done.")
        if record.get("bug"):
            raise ValueError("oops")
        return {**record, "seen": True}


def test_every_task_is_finished_once_and_failures_are_reported(ray: FakeRay) -> None:
    done = reports(run_with(), {"a": 1}, {"wrong": 1}, {"bug": 1}, {"a": 2})
    assert [report.result for report in done] == [{"a": 1, "seen": True}, None, None, {"a": 2, "seen": True}]
    (report,) = reports(run_with(None), {"a": 1})  # workers need no store where there is none
    assert report.result == {"a": 1, "seen": True}
    assert done[1].problem == "This cannot be done." and done[1].trace is None
    assert "ValueError: oops (in your code: " in str(done[2].problem)
    assert ray.joined and ray.left.wait(PATIENCE)
    assert not list(Path("rb-store").glob("leases/*/*"))


def test_a_worker_that_ignores_ctrl_c_works_in_any_thread(ray: FakeRay) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as on a node that was started in the background
    try:
        (report,) = reports(run_with(), {"a": 1})
    finally:
        signal.signal(signal.SIGINT, before)
    assert report.result == {"a": 1, "seen": True}, report.problem


def test_what_is_lost_with_its_node_is_tried_again_and_the_reason_is_passed_on(ray: FakeRay) -> None:
    ray.failures = [NodeDiedError("The node died.\nLong advice.")]
    (report,) = reports(run_with(), {"a": 1})
    assert ray.options[0]["max_retries"] == ray_engine.TRIES - 1
    assert "A Ray worker failed: NodeDiedError: The node died. Check" in str(report.problem)


def test_another_version_on_a_node_is_said() -> None:
    report = ray_engine.serve("0.0.1", b"no pickle of this version", Job(Echo(), {}), 1)
    assert f"has rbtools {__version__}, but the driver has 0.0.1" in str(report.problem)


def test_leaving_stops_what_runs(ray: FakeRay) -> None:
    gate = threading.Event()
    ray.task = lambda function, *args: gate.wait(PATIENCE)
    with pytest.raises(KeyboardInterrupt), RayEngine(run_with()) as engine:
        engine.submit(Job(Echo(), {}))
        while not engine._running:
            time.sleep(0.01)
        raise KeyboardInterrupt
    assert ray.cancelled == 1 and ray.left.wait(PATIENCE)
    gate.set()


def test_a_node_that_does_not_see_the_store_says_so(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "sees", lambda run, name: False)
    run = run_with()
    (report,) = reports(run, {"a": 1})
    wanted = f"The Ray node {socket.gethostname()} does not see the store {run.store.folder}. Name a folder"
    assert report.result is None and str(report.problem).startswith(wanted)
    monkeypatch.undo()
    name = "ab" * 32
    path = run.store.path("leases", name)
    assert path is not None and not ray_engine.sees(run, name)  # another store of that name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    assert ray_engine.sees(run, name) and not ray_engine.sees(run, None)
    assert ray_engine.sees(run_with(None), None)


@pytest.mark.parametrize(
    ("resources", "options", "wanted"),
    [
        ([{"CPU": 2.0}, {"CPU": 4.0}], {}, ("cpu", 0, 2, 6)),
        ([{"CPU": 3.0}, {"CPU": 4.0}], {"threads": 4}, ("cpu", 0, 4, 1)),
        ([{"CPU": 0.0}, {"CPU": 4.0}], {}, ("cpu", 0, 4, 4)),
        ([{"CPU": 8.0, "GPU": 2.0}], {"jobs_per_gpu": 4}, ("cuda", 0.25, 1, 8)),
        ([{"CPU": 8.0, "GPU": 2.0}], {"device": "cpu"}, ("cpu", 0, 8, 8)),
    ],
)
def test_share_of_a_node(
    ray: FakeRay, resources: list[dict[str, float]], options: dict[str, Any], wanted: tuple[Any, ...]
) -> None:
    ray.resources = resources
    assert tuple(ray_engine.share(ray, run_with(**options))) == wanted


@pytest.mark.parametrize(
    ("resources", "options", "message"),
    [
        ([{"CPU": 2.0}], {"threads": 3}, "needs 3 cores of one node, but .* have at most 2"),
        ([{"CPU": 0.0}], {}, "needs 1 cores of one node, but .* have none"),
        ([{"CPU": 2.0}], {"device": "cuda"}, "has no GPU"),
        ([{"CPU": 2.0, "GPU": 1.0}], {"device": "cuda:0"}, "Use --device cuda"),
    ],
)
def test_what_no_node_can_give_is_said_at_once(
    ray: FakeRay, resources: list[dict[str, float]], options: dict[str, Any], message: str
) -> None:
    ray.resources = resources
    with pytest.raises(RbError, match=message):
        reports(run_with(**options), {})
    assert ray.left.wait(PATIENCE)


def test_a_task_asks_for_its_threads_and_its_part_of_a_gpu(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name)
    small, large = {"arch": {"space": "nasbench201"}}, {"arch": {"space": "zoo"}}
    ray.resources = [{"CPU": 4.0}]
    reports(run_with(), small, large, {"arch": "none"})
    assert [(one["num_cpus"], one["num_gpus"]) for one in ray.options] == [(1, 0), (4, 0), (4, 0)]
    ray.options.clear()
    ray.resources = [{"CPU": 4.0, "GPU": 1.0}]
    reports(run_with(jobs_per_gpu=2, threads=3), small)
    assert [(one["num_cpus"], one["num_gpus"]) for one in ray.options] == [(3, 0.5)]


def test_an_address_without_a_cluster_is_said_at_once(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="Expected HOST:PORT"):
        ray_engine.Membership("127.0.0.1:65536").join()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    message = f"No Ray cluster answers at 127.0.0.1:{port}: Connection refused. Start one"
    with pytest.raises(RbError, match=message):
        ray_engine.Membership(f"127.0.0.1:{port}").join()
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    with pytest.raises(RbError, match=message):
        ray_engine.Membership(None).join()
    assert not ray.joined


def test_a_cluster_that_cannot_be_joined_says_why(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def refuse(**options: Any) -> None:
        raise RuntimeError("Version mismatch:\n    Ray: 1")

    monkeypatch.setattr(ray_engine, "_SECONDS_TO_JOIN", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(ray, "init", lambda **options: gate.wait(PATIENCE))  # something else than Ray
        with pytest.raises(RbError, match="could not be joined within 0 seconds"):
            ray_engine.Membership(f"127.0.0.1:{server.getsockname()[1]}").join()
    gate.set()
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(RbError, match="this machine failed: Version mismatch: Ray: 1"):
        ray_engine.Membership(None).join()
    assert not ray.left.is_set()
