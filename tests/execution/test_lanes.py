"""Workers of a pretend GPU in one process: chosen where that is faster, ended and killed like others."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rbtools.execution import cores, device, local, turns, worker_process, workers_per_gpu
from rbtools.execution.executor import Finished, Job
from rbtools.execution.job import JobFunction, JobReport
from rbtools.execution.local import LocalExecutor
from rbtools.execution.run import Run

PATIENCE = 120  # seconds for what a busy machine may delay


@dataclasses.dataclass(frozen=True)
class Steps(JobFunction):
    """Steps of 100 images until there is a file "end"; of 300 where workers share their GPU as `quick` says.

    What else a job does stands in its record.
    """

    quick: str = "in turn"
    run: Run | None = None

    in_turn = True

    def with_run(self, run: Run) -> JobFunction:
        return dataclasses.replace(self, run=run)

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        run, name = self.run, record["name"]
        assert run is not None
        worker_process._SECONDS_BETWEEN_PROGRESS = 0.0
        with open("log", "a") as log:
            log.write(f"{name} {os.getpid()}\n")
        try:
            if [begun for begun, _ in entries()].count(name) <= record.get("deaths", 0):
                time.sleep(record.get("sleeps", 0))  # without a look at what else is wanted
                wait_for(record["after"], run=run)
                os.kill(os.getpid(), signal.SIGKILL)
            if "breaks" in record:
                wait_for(record["after"], run=run)
                worker_process.device = types.SimpleNamespace(usable=lambda: False)  # type: ignore[attr-defined]
                import torch  # noqa: F401  (without it no GPU is in use)

                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            while not (Path("end").exists() or "ends" in record):
                pids = len({pid for _, pid in entries()})
                way = "alone" if len(entries()) == 1 else "in turn" if pids == 1 else "processes"
                run.report.after_batch(300 if way == self.quick else 100)
                run.report.check_cancelled()
                time.sleep(record.get("step", 0.005))
        finally:
            Path(f"unwound-{name}").touch()
        result = {**record, "pid": os.getpid(), "worker": run.placement.worker}
        return result | ({"no": lambda: 0} if "unpicklable" in record else {})


def entries() -> list[list[str]]:
    """Names of the jobs that were begun, and the processes that did."""
    path = Path("log")
    return [text.split() for text in path.read_text().splitlines()] if path.exists() else []


def wait_for(name: str, times: int = 1, run: Run | None = None) -> None:
    end = time.monotonic() + PATIENCE
    while [begun for begun, _ in entries()].count(name) < times:
        assert time.monotonic() < end
        if run is not None:
            run.report.check_cancelled()
        turns.pause(0.01)


def run_with(**options: Any) -> Run:
    return Run.of(tool="test", device="cpu", threads=1, jobs=1, gpus=1, **options)


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
    assert set(facts[-1]["images_per_second"]) == {"1", "2 in turn", "2 processes"}


@pytest.mark.usefixtures("two_cores")
def test_of_a_number_of_workers_that_is_given_only_the_way_is_measured() -> None:
    run = run_with(jobs_per_gpu=2).changed(jobs=2)
    with LocalExecutor([Steps("in turn")], run) as executor:
        for place, name in enumerate(("first", "second")):
            executor.submit(Job(place, 0, {"name": name}))
        settled(executor)
        assert executor._sharing.now == (2, True) and len(executor._sharing.rates) == 2
    assert LocalExecutor([JobFunction()], run)._sharing.settled, "what cannot take turns is not measured"


def of_jobs(count: int, *records: dict[str, Any]) -> dict[int, JobReport]:
    """The reports of jobs that so many workers do in turn; they may end once the first report is there."""
    run = run_with(jobs_per_gpu=count).changed(jobs=count)
    reports: dict[int, JobReport] = {}
    with LocalExecutor([Steps()], run) as executor:
        for place, record in enumerate(records):
            executor.submit(Job(place, 0, record))
        for event in executor.events():
            if isinstance(event, Finished):
                reports[event.place] = event.report
                Path("end").touch()
            if len(reports) == len(records):
                return reports
    raise AssertionError("unreachable")


def pids_of(name: str) -> list[str]:
    return [pid for begun, pid in entries() if begun == name]


def test_a_process_that_is_killed_costs_each_of_its_jobs_one_retry() -> None:
    """One job kills its process, twice; the other ends well in a process of its own."""
    reports = of_jobs(2, {"name": "killer", "deaths": 9, "after": "victim"}, {"name": "victim"})
    assert "was killed by signal 9 (SIGKILL), 2 times" in (reports[0].problem or "")
    assert reports[1].problem is None, reports[1]
    assert len(pids_of("killer")) == 2 and pids_of("killer")[0] == pids_of("victim")[0]
    assert len(pids_of("victim")) == 2 and pids_of("victim")[1] not in pids_of("killer")


def test_a_process_that_is_killed_before_it_looks_for_other_workers_leaves_none_waiting() -> None:
    reports = of_jobs(2, {"name": "killer", "deaths": 9, "sleeps": 1, "after": "killer"}, {"name": "other"})
    assert "2 times" in (reports[0].problem or "") and reports[1].problem is None


def test_no_job_joins_the_process_of_one_that_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    forked: list[int] = []
    pipes: list[Any] = []

    def fork(self: LocalExecutor, number: int) -> Any:
        forked.append(number)
        pipes.append(multiprocessing.Pipe())
        return local._LocalWorker(pipes[-1][0], local._LocalProcess(number))

    monkeypatch.setattr(LocalExecutor, "_forked", fork)
    monkeypatch.setattr(
        LocalExecutor, "_started_server", lambda self: types.SimpleNamespace(is_alive=lambda: True)
    )
    executor = LocalExecutor([Steps()], run_with(jobs_per_gpu=2).changed(jobs=2))

    def worker(number: int, tries: int) -> Any:
        return executor._worker(number, tries)

    assert worker(0, 2).lane is False and forked == [0]
    assert worker(1, 1).lane is False and forked == [0, 1], (
        "the first worker's job has ended a process before"
    )
    assert worker(0, 1).process.pid == 0 and forked == [0, 1]
    assert worker(1, 1).lane is True and forked == [0, 1], "now it may be joined"
    assert worker(1, 2).lane is False and forked == [0, 1, 1], "what is tried again is alone"
    assert worker(1, 1).lane is True
    assert worker(0, 2).lane is False and forked == [0, 1, 1, 0], "also where others have joined the process"


def test_a_report_that_cannot_be_sent_ends_its_worker_and_no_other() -> None:
    reports = of_jobs(2, {"name": "good"}, {"name": "bad", "unpicklable": True, "ends": True})
    assert reports[0].problem is None
    assert "2 times" in (reports[1].problem or "")


def test_a_gpu_that_takes_no_more_work_ends_the_process_and_its_message_is_kept() -> None:
    """The other job of the process is tried again in a new one."""
    reports = of_jobs(2, {"name": "broken", "breaks": True, "after": "other"}, {"name": "other"})
    assert "illegal memory access" in (reports[0].problem or "")
    assert reports[1].problem is None and len(set(pids_of("other"))) == 2
    assert len(pids_of("broken")) == 2


def test_jobs_that_are_given_back_are_done_next() -> None:
    """While others wait."""
    run = run_with().changed(notify=lambda text: None)
    names = ["first", "second", *(f"later{i}" for i in range(4))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers_per_gpu, "SECONDS", 0.3)
        patch.setattr(cores, "count", lambda: 2)
        with LocalExecutor([Steps("processes")], run) as executor:
            executor._sharing.most = 2
            for place, name in enumerate(names):
                executor.submit(Job(place, 0, {"name": name}))
            settled(executor)
            assert [name for name, _ in entries()] == ["first", "second", "second"]


def test_leaving_ends_every_job_at_its_next_step() -> None:
    count = 4
    run = run_with(jobs_per_gpu=count).changed(jobs=count)
    names = [f"job{number}" for number in range(count)]
    with LocalExecutor([Steps()], run) as executor:
        for place, name in enumerate(names):
            executor.submit(Job(place, 0, {"name": name, "step": 0.05}))
        for name in names:
            wait_for(name)
        (pid,) = {int(number) for _, number in entries()}
    end = time.monotonic() + PATIENCE
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert [name for name in names if not Path(f"unwound-{name}").exists()] == []


def test_only_later_workers_of_a_process_have_streams_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    process = worker_process._WorkerProcess([Steps()], run_with())
    ours, theirs = multiprocessing.Pipe()
    assert [worker_process._Lane(process, theirs, number).run.placement.own_stream for number in (0, 1)] == [
        False,
        True,
    ]
    ours.close()
    used: list[Any] = []

    class Stream:
        def wait_stream(self, other: Any) -> None:
            used.append((self, "after", other))

    @contextlib.contextmanager
    def launching_on(stream: Any) -> Iterator[None]:
        used.append(stream)
        yield

    default, own = Stream(), Stream()
    monkeypatch.setattr(device.torch.cuda, "current_stream", lambda place: default)
    monkeypatch.setattr(device.torch.cuda, "stream", launching_on)
    monkeypatch.setattr(turns, "stream", lambda place, thread: own)
    for kind, expected in (("cuda", [(own, "after", default), own, (default, "after", own)]), ("xpu", [])):
        monkeypatch.setattr(device, "choose", lambda run, kind=kind: device.torch.device(kind, 0))
        used.clear()
        with contextlib.suppress(KeyError), device.taken(run_with(own_stream=True), 1):
            raise KeyError  # the job fails
        assert used == expected
