"""The loop of all filters: interruptions at critical moments, shards, lines that are read ahead."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rbtools.cli import filter_loop, read_ahead, window
from rbtools.cli.read_ahead import ReadAhead
from rbtools.cli.source import RecordSource
from rbtools.cli.terminal import Terminal
from rbtools.errors import RbError
from rbtools.execution.engine import JobFunction
from rbtools.execution.run import Run
from rbtools.records import Line
from tests.runner import records, run


class Same(JobFunction):
    """Leaves a record as it is."""

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        return record


@pytest.mark.parametrize("method", ["finish_job", "_write"])
def test_an_interruption_between_a_job_and_its_line_loses_no_result(
    method: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interruptions = [KeyboardInterrupt()]
    whole = getattr(window.Window, method)

    def interrupted(*args: Any) -> None:
        if interruptions:
            raise interruptions.pop()
        whole(*args)

    monkeypatch.setattr(window.Window, method, interrupted)
    record = {"schema": 1, "arch": {"name": "a"}}
    Path("in.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(KeyboardInterrupt):
        filter_loop.filter_records(
            RecordSource(files=("in.jsonl",)), [Same()], Terminal("test"), run=Run.of(tool="test")
        )
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [record]


def test_shards_divide_the_results_of_a_record_and_keep_their_places() -> None:
    (arch,) = records(run("arch", "--index 5 --cells 1 --channels 2"))
    failed = {"arch": {"name": "b"}, "error": {"tool": "x", "message": "It failed."}}

    def trained(more: str) -> list[dict[str, Any]]:
        words = f"--method erm,pgd --seed 0,1 --epochs 0 {more}"
        return records(run("train", words, [arch, failed, arch]))

    whole = trained("")
    assert [len(trained(f"--shard {number}/3")) for number in (1, 2, 3)] == [3, 3, 3] and len(whole) == 9
    for one, *row in zip(
        whole, *(trained(f"--shard {number}/3 --placeholders") for number in (1, 2, 3)), strict=True
    ):
        mine = [other for other in row if other.get("error", {}).get("message") != filter_loop.ELSEWHERE]
        assert len(mine) == 1 and mine[0].get("checkpoint") == one.get("checkpoint")
        assert mine[0].get("train", {}).get("method") == one.get("train", {}).get("method")


def test_a_shard_without_work_says_why() -> None:
    done = run("train", "--shard 2/2", [{"arch": {"name": "a"}}])
    assert (done.exit_code, done.stdout) == (0, "")
    assert "no work for shard 2 of 2: earlier shards have all results, fewer than 2." in done.stderr


def test_lines_are_read_ahead_no_further_than_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "MOST_BYTES", 100)
    read: list[int] = []

    def source() -> Iterator[Line]:
        for number in range(50):
            read.append(number)
            yield Line("-", number, b"x" * 30, None, None)
        raise RbError("It ends.")

    ahead = ReadAhead(source(), lambda line: 2)
    lines = iter(ahead)
    assert next(lines).number == 0 and not ahead.ended and len(read) <= 6
    numbers = []
    with pytest.raises(RbError, match=r"It ends\."):
        for line in lines:
            numbers.append(line.number)
            assert len(read) - line.number <= 6
    assert numbers == list(range(1, 50)) and ahead.ended and ahead.count == 100


def test_a_fact_of_the_whole_run_is_said_once() -> None:
    """A folder or device that is missing ends the run; records that fail for one reason are counted."""
    given = run("arch", "--index 1-4 --dataset digits").stdout
    result = run("attack", "none --dataset imagefolder:nowhere", given)
    assert result.exit_code == 2 and result.stderr.count("nowhere does not exist") == 1 and not result.stdout
    result = run("attack", "none", given)
    assert result.stderr.count("has no checkpoint") == 1 and "3 further records failed" in result.stderr
    assert all("has no checkpoint" in one["error"]["message"] for one in records(result))
    assert run("attack", "none -v", given).stderr.count("has no checkpoint") == 4
