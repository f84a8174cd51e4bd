"""Values found out by a pipe of the user's, and runs spread over processes."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from rbtools.execution.run import Run
from rbtools.search.live import LivePipe
from rbtools.spaces import nasbench201
from rbtools.store import Store
from tests import runner
from tests.search.landscapes import slope, table_file

WORK = """
import json, os, sys
for line in sys.stdin:
    one = json.loads(line)
    index = one["arch"]["index"]
    with open("calls.txt", "a") as calls:
        calls.write(f"{index}\\n")
    one["metrics"] = {"acc": index / 15625, "cells": one["arch"]["cells"]}
    one["store"] = os.environ.get("RB_STORE")
    print(json.dumps(one))
"""


@pytest.fixture
def pipe(tmp_path: Path) -> str:
    """A command that gives each architecture a value, and writes a log of its calls."""
    (tmp_path / "work.py").write_text(WORK)
    return f"{shlex.quote(sys.executable)} -S work.py"


def search(words: str, pipe: str | None = None) -> Result:
    live = "" if pipe is None else f" --live {shlex.quote(pipe)}"
    return runner.run("search", f"{words}{live}")


def calls() -> list[int]:
    return [int(line) for line in Path("calls.txt").read_text().split()]


def test_each_new_architecture_goes_through_the_pipe_once(pipe: str) -> None:
    result = search("local --objective acc --budget 30 --runs 2 --cells 2", pipe)
    one = runner.one(result)
    assert len(calls()) == len(set(calls())) and set(calls()) <= set(nasbench201.unique())
    assert f"{len(calls())} of 6466 architectures were evaluated for acc" in result.stderr
    assert one["search"]["queries"]["charged"]["mean"] == 30
    assert one["metrics"] == {"acc": max(calls()) / 15625, "cells": 2}
    assert one["search"]["values"]["acc"] == one["metrics"]["acc"] and "gap" not in one["search"]


def test_jobs_change_nothing_but_the_time(pipe: str) -> None:
    words = "evolution --objective acc --budget 40 --jobs"
    assert search(f"{words} 1", pipe).stdout == search(f"{words} 3", pipe).stdout != ""


def test_the_pipe_works_with_the_store_of_the_search(pipe: str, tmp_path: Path) -> None:
    store = tmp_path / "mine"
    one = runner.one(search(f"random --objective acc --budget 1 --store {store}", pipe))
    assert one["store"] == str(store)


def test_what_the_pipe_cannot_do_is_charged_named_and_left_out(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(
        WORK.replace('    one["store"]', "    if index % 2: sys.exit('no odd ones')\n    one[\"store\"]")
    )
    command = f"{shlex.quote(sys.executable)} -S work.py"
    result = search("random --objective acc --budget 6 --jobs 6", command)
    assert result.exit_code == 1
    one = json.loads(result.stdout)
    odd = [index for index in calls() if index % 2]
    assert odd and one["arch"]["index"] % 2 == 0 and one["search"]["queries"]["failed"] == len(odd)
    said = f"nb201-{odd[0]}: The command ended with status 1, without this record. It said: no odd ones"
    assert said in result.stderr


def test_an_objective_that_the_pipe_does_not_give_ends_the_search(pipe: str) -> None:
    result = search("random --objective pgd20.8 --budget 500", pipe)
    assert result.exit_code == 2 and "There is no metric or field 'pgd20.8'" in result.stderr
    assert len(calls()) <= 32  # the first proposal


def test_findings_are_looked_up_in_a_table(pipe: str) -> None:
    result = search(f"random --objective acc --budget 9 --table {table_file('table.jsonl')}", pipe)
    section = runner.one(result)["search"]
    found = nasbench201.classes()[int(section["found"].removeprefix("nb201-"))]
    assert section["looked_up"]["table.jsonl"]["metrics"]["acc"]["mean"] == slope(found)


def test_several_objectives_may_be_found_out_live(pipe: str) -> None:
    front = runner.records(search("random --objective acc,params --budget 20", pipe))
    assert front and all(set(one["search"]["values"]) == {"acc", "params"} for one in front)


def work(command: str, count: int = 3, seconds: float | None = None, jobs: int = 1) -> list[dict[str, Any]]:
    records = [{"schema": 1, "arch": {"space": "zoo", "name": f"n{place}"}} for place in range(count)]
    return LivePipe(command, Run.of(tool="rb-search", store=Store(None), jobs=jobs), seconds)(records)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("false", "ended with status 1, without this record"),
        ("cat >/dev/null; echo hello", "wrote a line that is not JSON"),
        ("awk '{print; print}'", "gives several records for one"),
        ("sed 's/\"n/\"m/'", "a record that does not belong to an input"),
        ("echo oh dear >&2; exit 3", "ended with status 3, without this record. It said: oh dear"),
    ],
)
def test_a_pipe_that_does_not_do_its_work_makes_error_records(command: str, reason: str) -> None:
    found = work(command)
    assert [one["arch"]["name"] for one in found] == ["n0", "n1", "n2"]
    assert all(reason in one["error"]["message"] for one in found)


def test_an_error_record_of_the_pipe_keeps_its_own_reason() -> None:
    line = 's/}$/,"error":{"tool":"rb-train","message":"no luck"}}/'
    assert [one["error"]["message"] for one in work(f"sed '{line}'")] == ["no luck"] * 3


def test_a_pipe_that_takes_too_long_is_ended_with_all_that_it_started() -> None:
    start = time.monotonic()
    found = work("sleep 613.75 | cat", count=2, seconds=0.2, jobs=2)
    assert time.monotonic() - start < 300  # a busy machine takes its time
    assert all("It took longer than 0.2 seconds" in one["error"]["message"] for one in found)
    while os.system("ps -e -o args | grep -q '^sleep 613.75$'") == 0 and sys.platform == "linux":
        assert time.monotonic() - start < 300, "what the pipe started runs on"
        time.sleep(0.1)


def test_runs_spread_over_processes_find_the_same() -> None:
    table = table_file("table.jsonl", nasbench201.unique()[::9])
    words = f"local --objective acc --runs 23 --budget 20 {table} --each --jobs"
    one, two = search(f"{words} 1"), search(f"{words} 2")
    assert one.stdout == two.stdout and len(one.stdout.splitlines()) == 23
