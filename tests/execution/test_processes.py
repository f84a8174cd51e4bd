"""Worker processes under everything that happens to processes: killed, interrupted, orphaned, unread.

The tool of these tests is a real one as far as the command line, the loop and the workers go; its work
sleeps, prints or dies as the record says, so that it needs no torch.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from rbtools.execution.engine import Call, Job, JobFunction, JobReport
from rbtools.execution.processes import Processes
from rbtools.execution.run import Run
from tests.execution.ray_nodes import of_session

TOOL = """
import os, signal, time
from dataclasses import dataclass
from pathlib import Path
from rbtools.cli import options, shared
from rbtools.execution.engine import JobFunction

@dataclass
class Work(JobFunction):
    number: int

    def __call__(self, record, run):
        with open("log", "a") as log:
            log.write(f"{record['name']} {os.getpid()}\\n")
        if Path("log").read_text().count(record["name"] + " ") <= record.get("deaths", 0):
            os.kill(os.getpid(), signal.SIGKILL)
        end = time.monotonic() + record.get("seconds", 0)
        while time.monotonic() < end:
            time.sleep(0.02)
            run.report.progress("at work")
        seen = len(Path("log").read_text().splitlines())
        return {**record, "work": self.number, "seen": seen}

@shared.command()
@options.stream_options
@options.train_options
def main(source, work):
    "Work."
    works = [Work(number) for number in range(int(os.environ.get("WORKS", "1")))]
    return shared.filter_records(source, works, work)

if __name__ == "__main__":
    main()
"""
SLOW = 600  # seconds: longer than any of these tests waits
PATIENCE = 300  # seconds for what a busy machine may delay


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start the tool, by default with two workers, on records; its session is ended after the test."""
    (tmp_path / "tool.py").write_text(TOOL)
    started: list[subprocess.Popen[bytes]] = []

    def start(*records: dict[str, Any], options: str = "--jobs 2 in.jsonl") -> subprocess.Popen[bytes]:
        (tmp_path / "in.jsonl").write_bytes(b"".join(line(record) for record in records))
        arguments = [sys.executable, "tool.py", *options.split()]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen(arguments, start_new_session=True, **pipes)
        started.append(process)
        return process

    yield start
    for process in started:
        for pid in of_session(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def line(record: dict[str, Any]) -> bytes:
    return json.dumps({"schema": 1, "arch": {"name": record["name"]}, **record}).encode() + b"\n"


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def log() -> list[list[str]]:
    """Names of the records that were begun, and the processes that did."""
    path = Path("log")
    return [text.split() for text in path.read_text().splitlines()] if path.exists() else []


def ended(process: subprocess.Popen[bytes]) -> tuple[list[dict[str, Any]], str]:
    out, err = process.communicate(timeout=PATIENCE)
    return [json.loads(text) for text in out.splitlines()], err.decode()


def names(records: list[dict[str, Any]]) -> list[str]:
    return [record["name"] for record in records]


Start = Callable[..., "subprocess.Popen[bytes]"]
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")


def test_records_keep_their_order_and_unordered_ones_come_as_they_are_done(start: Start) -> None:
    records = [{"name": "slow", "seconds": 1.5}, *({"name": f"quick{i}"} for i in range(4))]
    found, said = ended(start(*records))
    assert names(found) == names(records), said
    Path("log").unlink()
    found, said = ended(start(*records, options="--jobs 2 --unordered in.jsonl"))
    assert sorted(names(found)) == sorted(names(records)) and found[-1]["name"] == "slow", said


@pytest.mark.parametrize("works", [1, 3])
def test_only_a_window_of_records_is_under_way(
    works: int, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKS", str(works))
    found, said = ended(start({"name": "slow", "seconds": 1}, *({"name": "quick"} for _ in range(60))))
    assert len(found) == 61 * works, said
    assert [record["work"] for record in found] == list(range(works)) * 61
    # All works of "slow" see what was begun while they slept: at most four lines a worker.
    assert 1 < max(record["seen"] for record in found[:works]) <= 8 * works


@pytest.mark.parametrize("deaths", [1, 9])
def test_a_killed_worker_costs_its_record_one_retry_and_then_the_record_is_an_error(
    deaths: int, start: Start
) -> None:
    process = start({"name": "a"}, {"name": "victim", "deaths": deaths}, {"name": "b"})
    found, said = ended(process)
    assert process.returncode == (deaths > 1) and names(found) == ["a", "victim", "b"]
    assert "warning: A worker was killed by signal 9 (SIGKILL); its work is repeated." in said
    assert ["error" in record for record in found] == [False, deaths > 1, False]
    assert deaths == 1 or "was killed by signal 9 (SIGKILL), 2 times" in found[1]["error"]["message"]
    assert [name for name, _ in log()].count("victim") == 2


def test_where_no_process_can_be_started_the_record_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Processes, number: int) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(Processes, "_start", fail)
    with Processes(Run.of(tool="test", jobs=2)) as engine:
        ((_, report),) = engine.map([Job(JobFunction(), {})])
    assert "Resource temporarily unavailable. Use fewer --jobs." in (report.problem or "")


def test_work_that_cannot_be_sent_says_so_and_the_next_one_is_done() -> None:
    class Local(JobFunction):
        def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
            return record

    with Processes(Run.of(tool="test", jobs=2)) as engine:
        found = dict(engine.map([Job(Local(), {}), Job(JobFunction(), {})]))
    assert "cannot be sent to another process" in (found[0].problem or "")
    assert "NotImplementedError" in (found[1].problem or "")


class Nap(JobFunction):
    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        time.sleep(0.5)
        return record


def test_calls_that_nobody_waits_for_are_not_done() -> None:
    futures: list[Future[JobReport]] = []

    class Watched(Processes):
        def submit(self, call: Call) -> Future[JobReport]:
            futures.append(super().submit(call))
            return futures[-1]

    with Watched(Run.of(tool="test", jobs=1)) as engine:
        reports = engine.map([Job(Nap(), {})] * 4)
        next(reports)
        reports.close()
        assert len(futures) > 2 and futures[-1].cancelled()


@linux
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_writes_what_is_finished_and_leaves_nobody(
    number: signal.Signals, status: int, start: Start
) -> None:
    process = start({"name": "slow", "seconds": SLOW}, {"name": "quick"}, {"name": "slow", "seconds": SLOW})
    until(lambda: len(log()) == 3)  # who began the third has finished the second
    os.killpg(process.pid, number)  # as the terminal does, and a batch system
    found, said = ended(process)
    assert process.returncode == status, said
    assert names(found) == ["quick"]  # though what comes before it is not done
    assert "Traceback" not in said
    until(lambda: not of_session(process.pid))


@linux
def test_interrupted_while_workers_start_nothing_is_said_but_that(start: Start) -> None:
    process = start({"name": "slow", "seconds": SLOW}, {"name": "slow", "seconds": SLOW})
    until(lambda: len(of_session(process.pid)) >= 2)
    os.killpg(process.pid, signal.SIGINT)
    _, said = ended(process)
    assert process.returncode == 130 and "Traceback" not in said, said
    until(lambda: not of_session(process.pid))


@linux
def test_workers_end_when_their_parent_is_killed_or_its_reader_is_gone(start: Start) -> None:
    for end, status in (("kill", -signal.SIGKILL), ("close", 141)):
        process = start({"name": "slow", "seconds": SLOW}, {"name": "slow", "seconds": SLOW})
        until(lambda: len(log()) == 2)
        process.kill() if end == "kill" else process.stdout.close()
        assert process.wait(PATIENCE) == status
        until(lambda: not of_session(process.pid))  # noqa: B023
        Path("log").unlink()


def test_strict_stops_in_the_order_of_the_input_and_though_that_does_not_end(start: Start) -> None:
    strict = "--jobs 2 --errors stop"
    Path("mixed.jsonl").write_bytes(
        line({"name": "slow", "seconds": 1})
        + b'{"schema": 1, "arch": {"name": "fails"}}\n'  # the work wants a name beside it
        + line({"name": "after"})
    )
    process = start(options=f"{strict} mixed.jsonl")
    found, said = ended(process)
    assert process.returncode == 1 and "because of --errors stop" in said and names(found) == ["slow"]
    process = start(options=strict)
    process.stdin.write(b"no record\n")
    process.stdin.flush()
    assert process.wait(PATIENCE) == 1  # and not by SIGABRT, although a thread is still reading
    assert b"Fatal" not in process.stderr.read()
