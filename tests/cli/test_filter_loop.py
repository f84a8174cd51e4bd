"""The loop of all filters: interruptions at critical moments."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rbtools.cli import filter_loop
from rbtools.cli.source import RecordSource
from rbtools.cli.terminal import Terminal
from rbtools.execution.executor import Executor, Finished, Job, JobFunction, JobReport, Progress
from rbtools.execution.run import Run


class Same(JobFunction):
    """Leaves a record as it is."""

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        return record


@pytest.mark.parametrize("method", ["finish_job", "_write"])
def test_an_interruption_between_a_job_and_its_line_loses_no_result(
    method: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interruptions = [KeyboardInterrupt()]
    whole = getattr(filter_loop._Window, method)

    def interrupted(*args: Any) -> None:
        if interruptions:
            raise interruptions.pop()
        whole(*args)

    monkeypatch.setattr(filter_loop._Window, method, interrupted)
    record = {"schema": 1, "arch": {"name": "a"}}
    Path("in.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(KeyboardInterrupt):
        filter_loop.filter_records(
            RecordSource(files=("in.jsonl",)), [Same()], Terminal("test"), run=Run.of(tool="test")
        )
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [record]


class Divisible(Same):
    divisible = True


class Scripted(Executor):
    """Two workers: the last record ends only when the other worker helps."""

    def __init__(self, functions: Sequence[JobFunction], run: Run) -> None:
        super().__init__(functions, run)
        self.capacity = 2
        self.jobs: list[Job] = []

    def submit(self, job: Job) -> None:
        self.jobs.append(job)
        if job.helps:
            self.post(Progress("half", job.place))
            self.post(Finished(job.place, JobReport(result=job.record)))
        if job.helps or job.record["arch"]["name"] != "c" or not self.run.placement.divide:
            last = [one for one in self.jobs if not one.helps][-1]
            self.post(Finished(last.place, JobReport(result=last.record)))


@pytest.mark.parametrize(("function", "divide"), [(Divisible, True), (Divisible, False), (Same, False)])
def test_an_idle_worker_helps_with_the_last_record(
    function: type[JobFunction],
    divide: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made: list[Scripted] = []

    def scripted(functions: Sequence[JobFunction], run: Run, at_most: int | None) -> Scripted:
        made.append(Scripted(functions, run))
        return made[0]

    monkeypatch.setattr(filter_loop, "executor_for", scripted)
    lines = [json.dumps({"schema": 1, "arch": {"name": name}}) for name in "abc"]
    Path("in.jsonl").write_text("\n".join(lines) + "\n")
    shown: list[str] = []
    run = Run.of(tool="test", jobs=2, divide=divide, progress=shown.append)
    filter_loop.filter_records(RecordSource(files=("in.jsonl",)), [function()], Terminal("test"), run=run)
    written = [json.loads(line)["arch"]["name"] for line in capsys.readouterr().out.splitlines()]
    assert written == ["a", "b", "c"]
    helping = [job for job in made[0].jobs if job.helps]
    assert [job.record["arch"]["name"] for job in helping] == (["c"] if divide else [])
    assert len(made[0].jobs) == 3 + divide
    if divide:
        assert re.fullmatch(r"\[3/3\] c half · 0:\d\d left in all", shown[-1])
