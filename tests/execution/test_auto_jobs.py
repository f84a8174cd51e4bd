"""`--jobs auto`: what the machine has, and on a GPU as many workers as the first batch shows to fit."""

from __future__ import annotations

import dataclasses
import os
import resource
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from rbtools.cli import build_context
from rbtools.execution import cores, device, resources, worker_process, workers_per_gpu
from rbtools.execution.executor import Finished, Grown, Job
from rbtools.execution.job import JobFunction
from rbtools.execution.local import LocalExecutor
from rbtools.execution.run import Run


@dataclasses.dataclass
class OneBatch(JobFunction):
    """Work on a batch, in a process that is like one whose batch left room for two more workers."""

    run: Run | None = None

    def with_run(self, run: Run) -> JobFunction:
        return OneBatch(run)

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        sys.modules.setdefault("torch", types.ModuleType("torch"))  # which is not imported for this
        worker_process.device = types.SimpleNamespace(workers_that_fit=lambda: 3)  # type: ignore[attr-defined]
        worker_process._SECONDS_BETWEEN_PROGRESS = 0.0
        assert self.run is not None
        Path(f"worker-{self.run.placement.worker}").touch()
        left, end = 50, time.monotonic() + 20
        while left and time.monotonic() < end:  # all workers report while the others work
            left -= len(list(Path().glob("worker-*"))) >= record.get("workers", 1)
            self.run.report.after_batch(100)
            time.sleep(0.01)
        return {"pid": os.getpid(), "worker": self.run.placement.worker}


@pytest.mark.parametrize(("gpus", "count", "capacity"), [(1, 8, 2), (1, 1, 1), (2, 8, 4), (0, 8, 1)])
def test_more_workers_start_once_the_first_are_measured(
    gpus: int, count: int, capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "count", lambda: count)
    monkeypatch.setattr(workers_per_gpu, "SECONDS", 0.0)
    said: list[str] = []
    run = Run.of(tool="test", jobs=max(gpus, 1), gpus=gpus, notify=said.append)
    with LocalExecutor([OneBatch()], run) as executor:
        assert executor.capacity == max(gpus, 1)
        for place in range(max(gpus, 1)):
            executor.submit(Job(place, 0, {"workers": max(gpus, 1)}))
        events, found = executor.events(), []
        while sum(isinstance(event, Finished) for event in found) < max(gpus, 1):
            found.append(next(events))
        problems = [event.report.problem for event in found if isinstance(event, Finished)]
        assert problems == [None] * len(problems)
        assert [event for event in found if isinstance(event, Grown)] == [Grown(capacity)] * (gpus > 0)
        assert executor.capacity == capacity <= executor.most
    assert bool(said) is (gpus > 0 and capacity == 1), said  # it is decided where there is no room for more


def test_a_worker_too_many_ends_and_leaves_its_job_to_others() -> None:
    with LocalExecutor([OneBatch()], Run.of(tool="test", jobs=2)) as executor:
        executor._resize(1)
        for place in range(4):
            executor.submit(Job(place, 0, {}))
        found = [event for _, event in zip(range(4), executor.events(), strict=False)]
    reports = [event.report.result for event in found if isinstance(event, Finished)]
    assert [report and report["worker"] for report in reports] == [0] * 4


def test_what_fits_is_measured_by_what_one_worker_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card of 100 GB where CUDA takes 2, this worker 8 at most and 5 now: 98 are free for it and others."""
    cuda = device.torch.cuda
    for name, value in {"is_initialized": True, "device_count": 1}.items():
        monkeypatch.setattr(cuda, name, lambda value=value: value)
    sizes = {"max_memory_reserved": 8e9, "memory_reserved": 5e9, "mem_get_info": (93e9, 100e9)}
    for name, size in sizes.items():
        monkeypatch.setattr(cuda, name, lambda card, size=size: size)
    monkeypatch.setattr(device, "_available", lambda: float("inf"))
    assert device.workers_that_fit() == 1 + int(0.9 * 90 / 10)
    resident = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    monkeypatch.setattr(device, "_available", lambda: 3.5 * resident)
    assert device.workers_that_fit() == 1 + 3
    monkeypatch.setattr(device, "_available", lambda: 0.0)
    assert device.workers_that_fit() == 1
    monkeypatch.setattr(cuda, "max_memory_reserved", lambda card: 0)
    assert device.workers_that_fit() is None
    monkeypatch.setattr(cuda, "is_initialized", lambda: False)
    assert device.workers_that_fit() is None


def test_the_memory_of_this_machine_is_known() -> None:
    assert device._available() > 1e6


@pytest.mark.parametrize(
    ("cards", "options", "jobs", "gpus"),
    [
        (0, {"jobs": "auto"}, 4, 0),
        (0, {"jobs": "auto", "threads": 2}, 2, 0),
        (2, {"jobs": "auto"}, 2, 2),
        (2, {"jobs": "auto", "device": "cuda:1"}, 1, 1),
        (2, {"jobs": "auto", "device": "cpu"}, 4, 0),
        (2, {"jobs": "auto", "jobs_per_gpu": 3}, 6, 2),
        (2, {"jobs": "auto", "jobs_per_gpu": 1}, 2, 0),
        (2, {"jobs": "auto", "jobs_per_gpu": "auto"}, 2, 2),
        (2, {"jobs": None, "jobs_per_gpu": "auto"}, 2, 2),
        (2, {"jobs": "2"}, 2, 0),
        (2, {"jobs": "auto", "dry_run": True}, 1, 0),
    ],
)
def test_auto_means_the_cores_or_the_gpus(
    cards: int, options: dict[str, Any], jobs: int, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "count", lambda: 4)
    monkeypatch.setattr(resources, "visible_gpus", lambda: cards)
    monkeypatch.setattr(
        build_context,
        "terminal",
        lambda *_: types.SimpleNamespace(tool="test", status=None, once=None, tell=None, detail=None),
    )
    shared = {"store": "st", "no_store": False, "force": False, "dry_run": False, "engine": "local"}
    shared |= {"quiet": True, "verbose": False, "log": None, "threads": None, "device": "auto"}
    run = build_context.build_context(**{**shared, "jobs_per_gpu": None, **options}).run
    assert (run.placement.jobs, run.placement.gpus) == (jobs, gpus)
    assert run.placement.divide == (jobs > 1 or gpus > 0)
