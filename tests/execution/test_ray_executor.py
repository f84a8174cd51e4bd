"""Both sides of `--engine ray` with a stand-in for Ray that runs its tasks in threads of this process.

What only a real cluster shows is in test_ray.py.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import hashlib
import itertools
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rbtools import __version__
from rbtools.errors import RbError, UsageError
from rbtools.evaluation.tasks import AccuracyTask
from rbtools.execution import resources as placing
from rbtools.execution.executor import Finished, Job
from rbtools.execution.job import JobFunction, JobReport
from rbtools.execution.ray import cluster, ray_executor, worker
from rbtools.execution.ray.ray_executor import RayExecutor
from rbtools.execution.ray.worker import RayTask, serve
from rbtools.execution.run import Run
from rbtools.jobs import EvaluateJob, TrainJob
from rbtools.store import Store
from rbtools.trainer import loop
from rbtools.trainer.recipe import Recipe
from rbtools.training.erm import ERM

RECORD: dict[str, Any] = {
    "schema": 1,
    "arch": {
        "space": "nasbench201",
        "str": "|none~0|+|none~0|none~1|+|nor_conv_1x1~0|none~1|none~2|",
        "channels": 2,
        "cells": 1,
    },
}
PATIENCE = 300  # seconds for what a busy machine may delay
FAST = Recipe(epochs=2, batch_size=721, lr=0.1)


class NodeDiedError(Exception):
    """Named as Ray's."""


class Lost(BaseException):
    """The machine of a task goes; no handler of the work gets to see it."""


class RayTaskError(Exception):
    """Named as Ray's."""


class Ref:
    """What `.remote()` gives."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def future(self) -> Future[Any]:
        return self._future


class Remote:
    """A function or an actor of the stand-in."""

    def __init__(self, ray: FakeRay, thing: Any) -> None:
        self._ray, self._thing = ray, thing

    def options(self, **options: Any) -> Remote:
        if not isinstance(self._thing, type):
            self._ray.options.append(options)
        return self

    def remote(self, *args: Any) -> Any:
        if isinstance(self._thing, type):
            return Actor(self._ray, self._thing())
        return Ref(self._ray.threads.submit(self._ray.task, self._thing, *args))


class Actor:
    """An actor's methods run in an event loop, as Ray runs those that are coroutines."""

    def __init__(self, ray: FakeRay, thing: Any) -> None:
        self._ray, self._thing = ray, thing

    def __getattr__(self, name: str) -> Any:
        def remote(*args: Any) -> Ref:
            return Ref(asyncio.run_coroutine_threadsafe(getattr(self._thing, name)(*args), self._ray.loop))

        return SimpleNamespace(remote=remote)

    def __del__(self) -> None:
        self._ray.dropped.append("while it shuts down" if self._ray.shutting_down.is_set() else "in time")


class FakeRay:
    """The part of the `ray` module that the engine uses."""

    util = SimpleNamespace(
        scheduling_strategies=SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: None)
    )

    def __init__(self) -> None:
        self.resources: list[dict[str, float]] = [{"CPU": 2.0}]
        self.failures: list[Exception] = []
        self.options: list[dict[str, Any]] = []
        self.cancelled = self.running = self.most = 0
        self.lock = threading.Lock()
        self.joined = False
        self.left, self.shutting_down, self.may_shut_down = (threading.Event() for _ in range(3))
        self.may_shut_down.set()
        self.dropped: list[str] = []
        self.threads = ThreadPoolExecutor(8)
        self.loop = asyncio.new_event_loop()
        self.looping = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.looping.start()

    def task(self, function: Callable[..., Any], *args: Any) -> Any:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
            failure = self.failures.pop(0) if self.failures else None
        try:
            if failure is not None:
                raise failure
            return function(*args)
        except Lost:
            raise NodeDiedError("in the middle") from None
        finally:
            with self.lock:
                self.running -= 1

    def init(self, **options: Any) -> None:
        assert options["log_to_driver"] is False
        self.joined = True

    def shutdown(self) -> None:
        self.shutting_down.set()
        self.may_shut_down.wait(PATIENCE)
        self.shutting_down.clear()
        self.left.set()

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": one} for one in self.resources] + [
            {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}
        ]

    def put(self, value: Any) -> Any:
        return value

    def remote(self, thing: Any) -> Remote:
        return Remote(self, thing)

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "here")

    def cancel(self, ref: Ref, force: bool) -> None:
        self.cancelled += 1

    def end(self) -> None:
        self.threads.shutdown(wait=True)
        for task in asyncio.all_tasks(self.loop):
            self.loop.call_soon_threadsafe(task.cancel)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.looping.join()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(worker, "_last", None)
    before = signal.getsignal(signal.SIGTERM)
    yield fake
    assert signal.getsignal(signal.SIGTERM) is before
    fake.end()


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers do not see the store."""
    monkeypatch.setattr(worker, "sees", lambda run, lease: False)


def run_with(store: str | None = "rb-store", **options: Any) -> Run:
    return Run.of(tool="rb-train", store=Store(store), engine="ray", jobs=0, **options)


def reports(run: Run, works: list[Any], *tasks: tuple[int, dict[str, Any]]) -> list[JobReport]:
    """What becomes of (work, record) pairs, in the order they were handed in."""
    found: dict[int, JobReport] = {}
    with RayExecutor(works, run) as executor:
        for place, (work, record) in enumerate(tasks):
            executor.submit(Job(place, work, record))
        for event in itertools.islice(executor.events(), len(tasks)):
            assert isinstance(event, Finished)
            found[event.place] = event.report
    return [found[place] for place in sorted(found)]


@dataclasses.dataclass(frozen=True)
class Echo(JobFunction):
    """A work that needs no store and no torch."""

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        if record.get("wrong"):
            raise RbError("This cannot be done.")
        if record.get("bug"):
            raise ValueError("oops")
        return {**record, "seen": True}


def train(run: Run) -> TrainJob:
    return TrainJob(ERM(), FAST, 0, run)


def steady(record: dict[str, Any] | None) -> Any:
    """A trained record without what is measured in seconds."""
    assert record is not None
    train = {key: value for key, value in record["train"].items() if "seconds" not in key}
    train["history"] = {key: value for key, value in train["history"].items() if key != "seconds"}
    return record["arch"], record["checkpoint"], train


# --- the pool -------------------------------------------------------------------------------------


def test_every_task_is_finished_once_and_failures_are_reported(ray: FakeRay) -> None:
    done = reports(run_with(), [Echo()], (0, {"a": 1}), (0, {"wrong": 1}), (0, {"bug": 1}), (0, {"a": 2}))
    assert [report.result for report in done] == [{"a": 1, "seen": True}, None, None, {"a": 2, "seen": True}]
    assert done[1].problem == "This cannot be done." and done[1].trace is None
    assert "ValueError: oops (in code of yours: " in str(done[2].problem)
    assert ray.joined and ray.left.wait(PATIENCE)
    assert not list(Path("rb-store").glob("leases/*/*"))


def test_a_worker_that_ignores_ctrl_c_works_in_any_thread(ray: FakeRay) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as on a node that was started in the background
    try:
        (report,) = reports(run_with(), [Echo()], (0, {"a": 1}))
    finally:
        signal.signal(signal.SIGINT, before)
    assert report.result == {"a": 1, "seen": True}, report.problem


def test_a_lost_node_costs_a_try_and_not_the_record(ray: FakeRay) -> None:
    ray.failures = [NodeDiedError("gone"), NodeDiedError("gone")]
    (report,) = reports(run_with(), [Echo()], (0, {"a": 1}))
    assert report.result == {"a": 1, "seen": True}


def test_a_lost_worker_is_a_warning_as_one_on_this_machine_is(ray: FakeRay) -> None:
    ray.failures = [NodeDiedError("gone")]
    warnings: list[str] = []
    reports(run_with(warn=warnings.append), [Echo()], (0, {"a": 1}))
    assert warnings == ["A Ray worker was lost (NodeDiedError); its record is tried again."]


def test_a_record_that_loses_every_worker_becomes_an_error(ray: FakeRay) -> None:
    ray.failures = [NodeDiedError("The node died.\nLong advice.")] * ray_executor.TRIES
    (report,) = reports(run_with(), [Echo()], (0, {"a": 1}))
    assert report.result is None
    assert "was lost 3 times, at last with NodeDiedError: The node died. If memory" in str(report.problem)


def test_what_ray_says_of_a_worker_that_cannot_load_the_work_is_passed_on(ray: FakeRay) -> None:
    ray.failures = [RayTaskError("Traceback:\n  many lines\nModuleNotFoundError: No module named 'rbtools'")]
    (report,) = reports(run_with(), [Echo()], (0, {}))
    assert "ModuleNotFoundError: No module named 'rbtools'. Is the same rbtools" in str(report.problem)
    assert "many lines" not in str(report.problem)


def test_another_version_on_a_node_is_said(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "__version__", "0.0.1")
    (report,) = reports(run_with(), [Echo()], (0, {}))
    assert f"has rbtools 0.0.1, driver {__version__}" in str(report.problem)


@pytest.mark.parametrize("jobs", [1, 3])
def test_jobs_is_how_many_tasks_run_at_once(ray: FakeRay, jobs: int) -> None:
    run = run_with().changed(jobs=jobs)
    assert len(reports(run, [Echo()], *[(0, {"number": number}) for number in range(20)])) == 20
    assert 1 <= ray.most <= jobs


@dataclasses.dataclass(frozen=True)
class Workers(JobFunction):
    """Says for how many workers an evaluation is cut."""

    run: Run

    def with_run(self, run: Run) -> JobFunction:
        return dataclasses.replace(self, run=run)

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        return {**record, "workers": self.run.placement.workers}


@pytest.mark.parametrize(("jobs", "workers", "wanted"), [(0, 0, None), (3, 3, 3), (0, 1, 1)])
def test_one_evaluation_is_cut_for_all_that_the_cluster_has_room_for(
    ray: FakeRay, jobs: int, workers: int, wanted: int | None
) -> None:
    run = run_with(workers=workers).changed(jobs=jobs)
    with RayExecutor([Workers(run)], run) as executor:
        executor.submit(Job(0, 0, {}))
        event = next(iter(executor.events()))
    assert isinstance(event, Finished) and event.report.result is not None
    assert event.report.result["workers"] == (wanted or executor.capacity) and executor.capacity > 1


def test_leaving_stops_what_runs(ray: FakeRay) -> None:
    gate = threading.Event()
    ray.task = lambda function, *args: gate.wait(PATIENCE)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt), RayExecutor([Echo()], run_with()) as executor:
        executor.submit(Job(0, 0, {}))
        while not executor._running:
            time.sleep(0.01)
        raise KeyboardInterrupt
    assert ray.cancelled == 1 and ray.left.wait(PATIENCE)
    gate.set()


def test_no_reference_is_dropped_while_ray_shuts_down(ray: FakeRay) -> None:
    ray.may_shut_down.clear()
    (report,) = reports(run_with(), [Echo()], (0, {"a": 1}))
    gc.collect()
    assert report.result == {"a": 1, "seen": True} and ray.shutting_down.wait(PATIENCE)
    assert not ray.dropped  # Ray would end the process
    ray.may_shut_down.set()


# --- stores ---------------------------------------------------------------------------------------


def test_a_worker_that_sees_the_store_uses_it(ray: FakeRay) -> None:
    run = run_with()
    (first,) = reports(run, [train(run)], (0, RECORD))
    (again,) = reports(run, [train(run)], (0, RECORD))
    assert (first.computed, first.found, again.computed, again.found) == (1, 0, 0, 1)
    assert first.result == again.result


def test_the_very_store_is_told_from_another_of_its_name(tmp_path: Path) -> None:
    run = run_with()
    path = run.store.path("leases", "ab" * 32)
    assert path is not None
    assert not worker.sees(run, "ab" * 32)
    path.parent.mkdir(parents=True)
    path.touch()
    assert worker.sees(run, "ab" * 32)
    assert not worker.sees(run, None)
    assert worker.sees(run_with(None), None)


def test_unseen_store_ends_with_the_same_record_and_the_same_files(ray: FakeRay, unseen: None) -> None:
    run, alone = run_with(), Run.of(tool="rb-train", store=Store("alone"), threads=1)
    (report,) = reports(run, [train(run)], (0, RECORD))
    assert (report.problem, report.computed, report.found) == (None, 1, 0)
    assert steady(report.result) == steady(train(alone)(RECORD))
    for kind in ("objects", "state"):
        names = [[path.name for path in Store(folder).files(kind)] for folder in ("rb-store", "alone")]
        assert names[0] == names[1]
    (again,) = reports(run, [train(run)], (0, RECORD))
    assert (again.computed, again.found) == (0, 1) and again.result == report.result


def test_unseen_checkpoint_travels_to_the_evaluation(ray: FakeRay, unseen: None) -> None:
    local = Run.of(tool="rb-ge", store=Store("rb-store"), threads=1)
    trained = train(local)(RECORD)
    run = run_with(n=100)
    (report,) = reports(run, [EvaluateJob(AccuracyTask(), run)], (0, trained))
    assert report.result is not None and report.computed == 1
    wanted = EvaluateJob(AccuracyTask(), Run.of(tool="rb-ge", store=Store(None), threads=1, n=100))
    own = Store("rb-store").object(trained["checkpoint"])
    direct = wanted({**trained, "checkpoint_file": str(own)})
    assert report.result["metrics"]["acc"] == direct["metrics"]["acc"]
    more = run_with(n=200)
    (longer,) = reports(more, [EvaluateJob(AccuracyTask(), more)], (0, trained))
    assert longer.computed == 1 and longer.result is not None


def test_unfinished_training_goes_on_from_the_last_epoch_in_the_unseen_store(
    ray: FakeRay, unseen: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs, train_epoch, import_file = [], loop.train_epoch, ray_executor.import_file
    at_home = threading.Event()

    def watched(setup: Any, state: Any, pace: Any) -> None:
        if state.epoch == 1 and not at_home.is_set():
            assert at_home.wait(PATIENCE)
            raise Lost
        epochs.append(state.epoch)
        train_epoch(setup, state, pace)

    def taken(store: Store, kind: str, name: str, data: bytes) -> None:
        import_file(store, kind, name, data)
        if kind == "state":
            at_home.set()

    monkeypatch.setattr(loop, "train_epoch", watched)
    monkeypatch.setattr(ray_executor, "import_file", taken)
    run = run_with()
    (report,) = reports(run, [train(run)], (0, RECORD))
    assert report.problem is None and epochs == [0, 1]
    assert steady(report.result) == steady(
        train(Run.of(tool="rb-train", store=Store("a"), threads=1))(RECORD)
    )
    assert not list(Store("rb-store").files("state"))


def test_what_arrives_damaged_is_not_kept(
    ray: FakeRay, unseen: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = worker._Worker._answer

    def damaged(self: Any, *args: Any) -> Any:
        whole = answer(self, *args)
        return whole._replace(
            files={file: data[:-1] + bytes([data[-1] ^ 1]) for file, data in whole.files.items()}
        )

    monkeypatch.setattr(worker._Worker, "_answer", damaged)
    run = run_with()
    (report,) = reports(run, [train(run)], (0, RECORD))
    assert report.result is None and "arrived damaged" in str(report.problem)
    assert not list(Store("rb-store").files("objects"))


def test_no_store_needs_none(ray: FakeRay) -> None:
    run = run_with(None)
    record = {**RECORD, "checkpoint": "sha256:" + "0" * 64, "checkpoint_file": "nowhere.pt"}
    (report,) = reports(run, [EvaluateJob(AccuracyTask(), run)], (0, record))
    assert "nowhere.pt does not exist" in str(report.problem)


class Mailbox:
    """An actor that nobody listens to."""

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *args: None)


@dataclasses.dataclass(frozen=True)
class Reader(JobFunction):
    """A work that reads the user's checkpoint."""

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        return {**record, "read": Path(record["checkpoint_file"]).read_bytes().decode()}


def test_the_users_own_checkpoint_travels_and_keeps_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_last", None)
    orders = pickle.dumps(worker.RunSpec([Reader()], run_with(None), str(Path.cwd()), None))
    digits = hashlib.sha256(b"weights").hexdigest()
    record = {"checkpoint": f"sha256:{digits}", "checkpoint_file": "/elsewhere/model.pt", "more": 1}

    def ask(known: dict[Any, Any]) -> worker.Answer:
        return serve(__version__, orders, RayTask(1, 0, record, False, 1, known), Mailbox())

    assert ask({}).wants == {("objects", digits)}
    report = ask({("objects", digits): b"weights"}).report
    assert report is not None and report.result == {**record, "read": "weights"}
    report = ask({("objects", digits): None}).report
    assert report is not None and "/elsewhere/model.pt" in str(report.problem)


# --- what a task takes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resources", "options", "wanted"),
    [
        ([{"CPU": 2.0}, {"CPU": 4.0}], {}, ("cpu", 0, 2, 6)),
        ([{"CPU": 2.0}, {"CPU": 4.0}], {"threads": 2}, ("cpu", 0, 2, 3)),
        ([{"CPU": 3.0}, {"CPU": 4.0}], {"threads": 4}, ("cpu", 0, 4, 1)),
        ([{"CPU": 0.0}, {"CPU": 4.0}], {}, ("cpu", 0, 4, 4)),
        ([{"CPU": 8.0, "GPU": 2.0}, {"CPU": 2.0}], {}, ("cuda", 1, 1, 2)),
        ([{"CPU": 8.0, "GPU": 2.0}], {"jobs_per_gpu": 4}, ("cuda", 0.25, 1, 8)),
        ([{"CPU": 8.0, "GPU": 2.0}], {"device": "cpu"}, ("cpu", 0, 8, 8)),
    ],
)
def test_share_of_a_node(
    ray: FakeRay, resources: list[dict[str, float]], options: dict[str, Any], wanted: tuple[Any, ...]
) -> None:
    ray.resources = resources
    assert tuple(cluster.share(ray, run_with(**options))) == wanted


@pytest.mark.parametrize(
    ("resources", "options", "message"),
    [
        ([{"CPU": 2.0}], {"threads": 3}, "takes 3 cores of one node, but .* have at most 2"),
        ([{"CPU": 0.0}], {}, "takes 1 cores of one node, but .* have none"),
        ([{"CPU": 2.0}], {"device": "cuda"}, "has no GPU"),
        ([{"CPU": 2.0, "GPU": 1.0}], {"device": "cuda:0"}, "Use --device cuda"),
    ],
)
def test_what_no_node_can_give_is_said_at_once(
    ray: FakeRay, resources: list[dict[str, float]], options: dict[str, Any], message: str
) -> None:
    ray.resources = resources
    with pytest.raises(RbError, match=message):
        reports(run_with(**options), [Echo()])
    assert ray.left.wait(PATIENCE)


def test_a_task_asks_for_its_threads_and_its_part_of_a_gpu(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name)
    small, large = {"arch": {"space": "nasbench201"}}, {"arch": {"space": "zoo"}}
    ray.resources = [{"CPU": 4.0}]
    reports(run_with(), [Echo()], (0, small), (0, large), (0, {"arch": "none"}))
    assert [(one["num_cpus"], one["num_gpus"]) for one in ray.options] == [(1, 0), (4, 0), (4, 0)]
    ray.options.clear()
    ray.resources = [{"CPU": 4.0, "GPU": 1.0}]
    reports(run_with(jobs_per_gpu=2, threads=3), [Echo()], (0, small))
    assert [(one["num_cpus"], one["num_gpus"], one["max_retries"]) for one in ray.options] == [(3, 0.5, 0)]


@pytest.mark.parametrize(
    ("text", "engine", "jobs"), [(None, "local", 1), (None, "ray", 0), ("auto", "ray", 0), ("3", "ray", 3)]
)
def test_jobs_of_an_engine(text: str | None, engine: str, jobs: int) -> None:
    assert placing.jobs(text, None, 1, "auto", engine) == jobs


# --- reaching the cluster -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nowhere", "Expected HOST:PORT"),
        ("127.0.0.1:0", "Expected HOST:PORT"),
        ("127.0.0.1:65536", "Expected HOST:PORT"),
        ("127.0.0.1:6379/x", "Expected HOST:PORT"),
        ("ray://127.0.0.1:10001", "is one for Ray's client"),
    ],
)
def test_what_is_no_address_is_a_usage_error(ray: FakeRay, address: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cluster.Membership(address).join()
    assert not ray.joined


def test_an_address_where_nobody_listens_is_said_at_once(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    message = f"No Ray cluster answers at 127.0.0.1:{port}: Connection refused. Start one"
    with pytest.raises(RbError, match=message):
        cluster.Membership(f"127.0.0.1:{port}").join()
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    with pytest.raises(RbError, match=message):
        cluster.Membership(None).join()
    assert not ray.joined


def test_what_listens_and_is_no_ray_has_its_time(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def init(**options: Any) -> None:
        os.write(2, b"[2026-01-01 W 1 2] gcs_client.cc:210: Failed to get cluster ID\n")
        gate.wait(PATIENCE)

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(cluster, "_SECONDS_TO_JOIN", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(RbError) as wrong:
        cluster.Membership(f"127.0.0.1:{server.getsockname()[1]}").join()
    assert "did not let us join within 0 seconds" in str(wrong.value)
    assert str(wrong.value).endswith("Ray says: Failed to get cluster ID")
    gate.set()


def test_what_ray_refuses_is_passed_on(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: Any) -> None:
        raise RuntimeError("Version mismatch:\n    Ray: 1")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(RbError, match="this machine failed: Version mismatch: Ray: 1"):
        cluster.Membership(None).join()
    assert not ray.left.is_set()


def test_ray_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"ray is not installed: pip install 'rbtools\[ray\]'"):
        cluster.Membership(None).join()


@pytest.mark.parametrize("path", ["/nowhere/..", "/nowhere/", "a\0b", "x" * 300, "/nowhere/w.pt"])
def test_the_copy_of_a_checkpoint_has_a_name_whatever_the_record_says(path: str) -> None:
    data = b"weights"
    name = hashlib.sha256(data).hexdigest()
    record = {"checkpoint": f"sha256:{name}", "checkpoint_file": path}
    with worker._file_here(record, {("objects", name): data}) as (here, put_back):
        copy = Path(here["checkpoint_file"])
        assert copy.read_bytes() == data and (copy.name == "w.pt" or path != "/nowhere/w.pt")
        assert put_back(here) == record


def test_a_state_that_a_worker_dropped_is_in_the_store(tmp_path: Path) -> None:
    """Other names are no files of a store."""
    (tmp_path / "mine").write_text("x")
    driver = RayExecutor.__new__(RayExecutor)
    driver.store = Store(tmp_path / "store")
    (tmp_path / "store/state").mkdir(parents=True)
    driver._keep(worker.Answer(JobReport(), dropped=("../../mine", "a\0b")))
    assert (tmp_path / "mine").exists()
