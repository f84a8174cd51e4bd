"""The loop of all filters, where an interruption comes at the worst moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rbtools.cli import filter_loop
from rbtools.cli.source import RecordSource
from rbtools.cli.terminal import Terminal
from rbtools.execution.context import RunContext
from rbtools.execution.job import JobFunction


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
            RecordSource(files=("in.jsonl",)), [Same()], Terminal("test"), run=RunContext(tool="test")
        )
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [record]
