"""Workers of a pretend GPU in one process: chosen where that is faster, ended and killed like others."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from rbtools.execution import cores, turns, worker_process, workers_per_gpu
from rbtools.execution.context import RunContext
from rbtools.execution.executor import Finished, Job
from rbtools.execution.job import JobFunction, JobReport
from rbtools.execution.local import LocalExecutor

PATIENCE = 120  # seconds for what a busy machine may delay


@dataclasses.dataclass(frozen=True)
class Steps(JobFunction):
    """A job of so many steps, of 100 images each, that are quick in the way that `quick` says."""

    quick: str
    run: RunContext | None = None

    in_turn = True

    def with_run(self, run: RunContext) -> JobFunction:
        return dataclasses.replace(self, run=run)

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        run = self.run
        assert run is not None
        worker_process._SECONDS_BETWEEN_PROGRESS = 0.0
        with open("log", "a") as log:
            log.write(f"{record['name']} {os.getpid()}\n")
        if Path("log").read_text().count(f"{record['name']} ") <= record.get("deaths", 0):
            wait_for(record["after"], run=run)
            os.kill(os.getpid(), signal.SIGKILL)
        alone = record["name"] == "first"
        while not Path("end").exists():
            lanes = len({pid for _, pid in entries()}) == 1
            way = "alone" if alone and len(entries()) == 1 else "in turn" if lanes else "processes"
            run.after_batch(300 if way == self.quick else 100)
            run.check_cancelled()
            time.sleep(0.005)
        return {**record, "pid": os.getpid(), "worker": run.worker}


def entries() -> list[list[str]]:
    """Names of the jobs that were begun, and the processes that did."""
    path = Path("log")
    return [text.split() for text in path.read_text().splitlines()] if path.exists() else []


def wait_for(name: str, times: int = 1, run: RunContext | None = None) -> None:
    end = time.monotonic() + PATIENCE
    while [begun for begun, _ in entries()].count(name) < times:
        assert time.monotonic() < end
        if run is not None:
            run.check_cancelled()
        turns.pause(0.01)


def run_with(**options: Any) -> RunContext:
    return RunContext(tool="test", device="cpu", threads=1, jobs=1, gpus=1, **options)


def settled(executor: LocalExecutor) -> None:
    """Read events until it is decided how many workers there are, and how."""
    end = time.monotonic() + PATIENCE
    while not executor._sharing.settled:
        assert time.monotonic() < end, executor._sharing
        for _ in executor.ready():
            pass
        time.sleep(0.01)


def finished(executor: LocalExecutor, count: int) -> dict[int, JobReport]:
    """The reports of so many jobs, by place."""
    reports: dict[int, JobReport] = {}
    for event in executor.events():
        if isinstance(event, Finished):
            reports[event.place] = event.report
        if len(reports) == count:
            break
    return reports


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "count", lambda: 2)
    monkeypatch.setattr(workers_per_gpu, "SECONDS", 0.3)
    monkeypatch.setattr(worker_process.device, "workers_that_fit", lambda: 2)


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(
    ("quick", "way"), [("in turn", (2, True)), ("processes", (2, False)), ("alone", (1, False))]
)
def test_the_way_that_is_fastest_is_chosen(quick: str, way: tuple[int, bool]) -> None:
    said: list[str] = []
    facts: list[dict[str, Any]] = []
    run = run_with(notify=said.append, event=facts.append)
    with LocalExecutor([Steps(quick)], run) as executor:
        executor._sharing.most = 2
        for place, name in enumerate(("first", "second")):
            executor.submit(Job(place, 0, {"name": name}))
        settled(executor)
        assert executor._sharing.now == way
        # The second job was begun in the first worker's process, then in one of its own.
        (_, first), (_, lane), (_, own), *_ = entries()
        assert first == lane != own
        wait_for("second", times=3 if quick == "in turn" else 2)
        Path("end").touch()
        reports = list(finished(executor, 2).values())
    assert [report.problem for report in reports] == [None] * len(reports)
    ends = {report.result["name"]: report.result["pid"] for report in reports if report.result}
    if quick == "in turn":
        assert ends["second"] == ends["first"] == int(first)
    else:
        assert ends["second"] == int(own) != ends["first"]
    assert ("in turn in one process" in said[-1]) is way[1], said
    assert facts[-1]["per_gpu"] == way[0] and facts[-1]["in_turn"] is way[1]
    assert set(facts[-1]["images_per_second"]) == {"1", "2 in turn", "2"}


@pytest.mark.usefixtures("two_cores")
def test_of_a_number_of_workers_that_is_given_only_the_way_is_measured() -> None:
    run = dataclasses.replace(run_with(jobs_per_gpu=2), jobs=2)
    with LocalExecutor([Steps("in turn")], run) as executor:
        for place, name in enumerate(("first", "second")):
            executor.submit(Job(place, 0, {"name": name}))
        settled(executor)
        assert executor._sharing.now == (2, True) and len(executor._sharing.rates) == 2
    assert LocalExecutor([JobFunction()], run)._sharing.settled, "what cannot take turns is not measured"


def test_a_process_that_is_killed_costs_each_of_its_jobs_one_retry() -> None:
    """One job kills its process, twice; the other ends well in a process of its own."""
    run = dataclasses.replace(run_with(jobs_per_gpu=2), jobs=2)
    with LocalExecutor([Steps("in turn")], run) as executor:
        executor.submit(Job(0, 0, {"name": "killer", "deaths": 9, "after": "victim"}))
        executor.submit(Job(1, 0, {"name": "victim"}))
        found: dict[int, JobReport] = {}
        for event in executor.events():
            if isinstance(event, Finished):
                found[event.place] = event.report
                Path("end").touch()  # the victim waits for it
            if len(found) == 2:
                break
    assert "was killed by signal 9 (SIGKILL), 2 times" in (found[0].problem or "")
    assert found[1].problem is None, found[1]
    pids = {name: [pid for begun, pid in entries() if begun == name] for name in ("killer", "victim")}
    assert len(pids["killer"]) == 2 and pids["killer"][0] == pids["victim"][0]
    assert len(pids["victim"]) == 2 and pids["victim"][1] not in pids["killer"]


def test_leaving_ends_every_lane() -> None:
    run = dataclasses.replace(run_with(jobs_per_gpu=2), jobs=2)
    with LocalExecutor([Steps("in turn")], run) as executor:
        for place, name in enumerate(("first", "second")):
            executor.submit(Job(place, 0, {"name": name}))
        wait_for("second")
        (pid,) = {int(number) for _, number in entries()}
    end = time.monotonic() + PATIENCE
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
