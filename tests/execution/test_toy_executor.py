"""A third engine: threads of this process. One file, and a line in `rbtools.execution.ENGINES`."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click
import pytest
from click.testing import CliRunner

from rbtools.commands.attack import main
from rbtools.execution import ENGINES
from rbtools.execution.executor import Executor, Finished, Job, run_on


class ThreadExecutor(Executor):
    """`run.placement.jobs` threads; each job has a copy of the run, as in another process."""

    def __enter__(self) -> ThreadExecutor:
        self._threads = ThreadPoolExecutor(self.capacity)
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def submit(self, job: Job) -> None:
        self._threads.submit(self._run, job)

    def _run(self, job: Job) -> None:
        report = run_on(job, self.functions, pickle.loads(pickle.dumps(self.run)))
        self.post(Finished(job.place, report))


def test_a_third_engine_gives_the_records_that_one_process_gives(
    known: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENGINES._entries, "threads", f"{__name__}:ThreadExecutor")
    monkeypatch.setattr(click.Choice, "convert", lambda self, value, param, ctx: value)  # made from ENGINES
    lines = "".join(json.dumps(record) + "\n" for record in known.values())
    outputs = []
    for engine in ("--jobs 1", "--engine threads --jobs 2"):
        options = f"fgsm --n 20 --force {engine}".split()
        done = CliRunner().invoke(main, options, input=lines, catch_exceptions=False)
        outputs.append([json.loads(line) for line in done.stdout.splitlines()])
        assert done.exit_code == 0, done.output
    assert len(outputs[0]) == 2 and [without_seconds(some) for some in outputs[1:]] == [
        without_seconds(outputs[0])
    ]


def without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_seconds(item) for key, item in value.items() if key != "seconds"}
    return [without_seconds(item) for item in value] if isinstance(value, list) else value
