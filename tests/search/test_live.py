"""Values found out by a pipe of the user's or by a measure, and runs spread over processes."""

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
from rbtools.search.live import LivePipe, request_of
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


def measured(words: str) -> Result:
    return runner.run("search", f"random {words} --channels 2 --cells 1 --device cpu")


@pytest.mark.parametrize(
    ("metric", "attack", "eps", "params"),
    [
        ("ntk.robust.fro.pgd.8", "pgd", 8 / 255, {"kernel": "robust"}),
        ("ntk.twice.trace.fgsm.3", "fgsm", 3 / 255, {"kernel": "twice"}),
        ("ntk.clean.lmin", "pgd", 8 / 255, {"kernel": "clean"}),
        ("naswot", "pgd", 8 / 255, {}),
        ("ntk.robust.fro.pgd.0.5", "pgd", 0.5 / 255, {"kernel": "robust"}),
    ],
)
def test_the_name_of_a_metric_says_what_to_measure(
    metric: str, attack: str, eps: float, params: dict[str, Any]
) -> None:
    found = request_of(metric, lambda text: None)
    assert found.measures[0].name == metric.split(".")[0]
    assert all(getattr(found.measures[0], name) == value for name, value in params.items())
    assert found.attacks[0].name == attack and found.attacks[0].eps == pytest.approx(eps)


def test_what_is_searched_by_is_what_rb_measure_says() -> None:
    result = measured(f"--measure naswot --budget 2 --table {table_file('table.jsonl')}")
    one = runner.one(result)
    section = one.pop("search")
    index = one["arch"]["index"]
    arch = {key: one["arch"][key] for key in ("space", "name", "index", "channels", "cells")}
    again = runner.run("measure", "naswot --device cpu --store none", [{"schema": 1, "arch": arch}])
    assert runner.one(again)["metrics"]["naswot"] == section["values"]["naswot"]
    assert section["looked_up"]["table.jsonl"]["metrics"]["acc"]["mean"] == slope(index)
    assert "2 of 6466 architectures were evaluated for naswot" in result.stderr


def test_a_measure_that_needs_trained_weights_fails_record_by_record() -> None:
    result = measured("--measure wci --budget 2")
    assert result.exit_code == 1 and result.stdout == ""
    assert result.stderr.count("needs trained weights") == 2
    assert "nothing was found: every evaluation failed" in result.stderr
