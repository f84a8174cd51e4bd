"""rb-search: reports of runs over a table, and values found out by a pipe or a measure."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from rbtools.execution.run import Run
from rbtools.search.live import LivePipe, request_of
from rbtools.search.run_draws import RunDraws
from rbtools.spaces import nasbench201
from rbtools.store import Store
from tests import runner
from tests.search.landscapes import record, slope, table_file

Record = dict[str, Any]


def records(indices: Sequence[int], **more: Any) -> list[Record]:
    return [record(i, acc=slope(i) / 100, cost=float(i % 10), **more) for i in indices]


FEW = records(nasbench201.unique()[:40])


def run(words: str | list[str], table: Sequence[Record] | str = FEW) -> Result:
    return runner.run("search", words, table)


def found(words: str | list[str], table: Sequence[Record] = FEW, said: str = "") -> list[Record]:
    result = run(words, table)
    assert result.exit_code == 0 and said in result.stderr, result.stderr
    return runner.records(result)


def test_the_record_of_the_best_comes_out_with_what_the_runs_have_in_common() -> None:
    (one,) = found("random --objective acc --budget 5 --runs 20")
    best = max(FEW, key=lambda entry: entry["metrics"]["acc"])
    search = one.pop("search")
    assert one in FEW and search["values"] == {"acc": one["metrics"]["acc"]}
    assert (search["runs"], search["budget"], search["seed"]) == (20, 5, 0)
    assert search["optimum"]["value"] == best["metrics"]["acc"]
    values = [run["value"] for run in search["each"]]
    mean = sum(values) / 20
    deviation = (sum((value - mean) ** 2 for value in values) / 19) ** 0.5
    half = 2.093024054408263 * deviation / 20**0.5  # Student's t with 19 degrees of freedom
    assert search["objective"]["mean"] == pytest.approx(mean)
    assert search["objective"]["std"] == pytest.approx(deviation)
    assert search["objective"]["ci95"] == pytest.approx([mean - half, mean + half])
    assert search["gap"]["mean"] == pytest.approx(best["metrics"]["acc"] - mean)
    assert search["gap"]["reached"] == values.count(best["metrics"]["acc"])
    assert search["queries"]["charged"] == {"mean": 5, "std": 0, "ci95": [5, 5], "min": 5, "max": 5, "n": 20}
    assert search["looked_up"]["table"]["metrics"]["acc"] == search["objective"]


def test_the_trajectory_is_the_incumbent_after_each_query_over_runs() -> None:
    (one,) = found("random --objective acc --budget 6 --runs 3 --charge-repeats")
    by_class = {entry["arch"]["index"]: entry["metrics"]["acc"] for entry in FEW}
    classes = nasbench201.classes()
    there = [index for index in range(nasbench201.SIZE) if classes[index] in by_class]
    rows = []
    for number in range(3):
        draws = RunDraws(0, number)
        values = [by_class[classes[draws.choice(there)]] for _ in range(6)]
        rows.append([max(values[: count + 1]) for count in range(6)])
    trajectory = one["search"]["trajectory"]
    assert trajectory["mean"] == pytest.approx([sum(column) / 3 for column in zip(*rows, strict=True)])
    ends = (trajectory[key] for key in ("low", "mean", "high"))
    assert all(low <= mean <= high for low, mean, high in zip(*ends, strict=True))


def test_records_of_several_seeds_are_averaged_and_that_is_said() -> None:
    twice = [record(0, 777, acc=0.5, cost=1.0), record(0, 888, acc=0.7), record(9, 777, acc=0.1)]
    said = "1 architecture with several records (2 in all, seeds 777, 888): each metric is averaged."
    (one,) = found("random --objective acc --budget 2 --runs 1", twice, said)
    assert one["metrics"] == {"acc": pytest.approx(0.6), "cost": 1.0}
    assert one["search"]["values"]["acc"] == pytest.approx(0.6) and "evals" not in one


def test_results_of_several_kinds_are_not_mixed_and_all_that_differs_is_named() -> None:
    some = [
        one | {"dataset": name, "train": {"method": how}} for one in FEW for name in "ab" for how in "xyy"
    ]
    result = run("random --objective acc", some)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "a (120 records), b (120 records); train.method is y (160 records), x (80" in result.stderr
    assert "--where \"dataset == 'a' and train.method == 'y'\"." in result.stderr
    where = "dataset == 'a' and train.method == 'y'"
    assert found(["random", "--objective", "acc", "--where", where], some)[0]["dataset"] == "a"


def test_several_objectives_give_the_pareto_front_as_records() -> None:
    words = "random --objective acc,cost --lower cost --budget 40 --runs 2"
    front = found(words, FEW, "3 architectures on the front of all runs")
    pairs = {(entry["metrics"]["acc"], entry["metrics"]["cost"]) for entry in FEW}
    best = {one for one in pairs if not any(o != one and o[0] >= one[0] and o[1] <= one[1] for o in pairs)}
    assert {(one["metrics"]["acc"], one["metrics"]["cost"]) for one in front} == best
    for one in front:
        assert one["search"]["optimal"] and one["search"]["in_fronts_of_runs"] == 2
        assert one["search"]["hypervolume"]["mean"] == pytest.approx(1)


def test_records_without_the_objective_are_left_out_and_counted() -> None:
    table = [*FEW, record(9999, cost=1.0)]
    (one,) = found("random --objective acc", table, "1 values of the objective are missing")
    assert one["search"]["architectures"] == 40


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("random", "--objective is missing"),
        ("random --objective ac", "There is no metric or field 'ac'. Did you mean 'acc'"),
        ("random --measure naswot --live cat", "Give only one of them"),
        ("random --measure naswot some.jsonl", "To look up the results in a table, use --table"),
        ("darts --live cat", "rb-search darts does not query architectures. Leave out --live"),
        ("darts --objective acc", "--objective needs a table"),
    ],
)
def test_wrong_use_is_refused_in_one_line(arguments: str, message: str) -> None:
    table = FEW if arguments[0] != "d" and "--measure" not in arguments else ""
    sizes = " --budget 1 --channels 2 --cells 1 --device cpu" if "--measure" in arguments else ""
    result = run(arguments + sizes, table)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr and result.stderr.count("\n") == 1


def test_random_search_takes_any_list_of_architectures_and_others_say_why_not() -> None:
    zoo = [
        {"arch": {"space": "zoo", "name": name}, "metrics": {"acc": value}}
        for name, value in (("resnet18", 0.9), ("vgg19", 0.8))
    ]
    (one,) = found("random --objective acc --runs 2", zoo)
    assert one["arch"]["name"] == "resnet18"
    assert "neighbours" in run("local --objective acc --charge-repeats", zoo).stderr


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


def pipe(script: str = WORK) -> str:
    """A command that gives each architecture a value, and writes a log of its calls."""
    Path("work.py").write_text(script)
    return f"{shlex.quote(sys.executable)} -S work.py"


def search(words: str, pipe: str | None = None) -> Result:
    return runner.run("search", words if pipe is None else f"{words} --live {shlex.quote(pipe)}")


def calls() -> list[int]:
    return [int(line) for line in Path("calls.txt").read_text().split()]


def test_each_new_architecture_goes_through_the_pipe_once() -> None:
    result = search("local --objective acc --budget 30 --runs 2 --cells 2", pipe())
    one = runner.one(result)
    assert len(calls()) == len(set(calls())) and set(calls()) <= set(nasbench201.unique())
    assert one["search"]["queries"]["charged"]["mean"] == 30
    assert one["metrics"] == {"acc": max(calls()) / 15625, "cells": 2}
    assert one["search"]["values"]["acc"] == one["metrics"]["acc"] and "gap" not in one["search"]


def test_architectures_on_standard_input_are_the_space() -> None:
    """With their own sizes; a table is searched among them, too."""
    given = runner.run("arch", "--unique --sample 8 --cells 1 --channels 4").stdout
    indices = {json.loads(line)["arch"]["index"] for line in given.splitlines()}
    words = f"evolution --objective acc --budget 5 --live {shlex.quote(pipe())}"
    one = runner.one(runner.run("search", words, given))
    assert set(calls()) <= indices and one["metrics"]["cells"] == 1
    wrong = runner.run("search", f"{words} --cells 2", given)
    assert wrong.exit_code == 2 and "Leave out --cells" in wrong.stderr
    table = [
        arch | {"metrics": {"acc": 1 / (2 + i)}} for i, arch in enumerate(map(json.loads, given.splitlines()))
    ]
    Path("t.jsonl").write_text(runner.lines(*table))
    words = "random --objective acc --budget 3 --runs 2 --table t.jsonl"
    assert runner.one(runner.run("search", words, given.split("\n", 1)[1]))["metrics"]["acc"] == 1 / 3
    wrong = runner.run("search", words, runner.run("arch", "--index 13714").stdout)
    assert wrong.exit_code == 2 and "1 architecture on standard input" in wrong.stderr


def test_what_the_pipe_cannot_do_is_charged_named_and_left_out() -> None:
    script = WORK.replace('    one["store"]', "    if index % 2: sys.exit('no odd ones')\n    one[\"store\"]")
    result = search("random --objective acc --budget 6 --jobs 6", pipe(script))
    assert result.exit_code == 1
    one = json.loads(result.stdout)
    odd = [index for index in calls() if index % 2]
    assert odd and one["arch"]["index"] % 2 == 0 and one["search"]["queries"]["failed"] == len(odd)
    said = f"nb201-{odd[0]}: The command ended with status 1 before it wrote this record."
    assert said in result.stderr


def work(command: str, count: int = 3, seconds: float | None = None, jobs: int = 1) -> list[dict[str, Any]]:
    records = [{"schema": 1, "arch": {"space": "zoo", "name": f"n{place}"}} for place in range(count)]
    return LivePipe(command, Run.of(tool="rb-search", store=Store(None), jobs=jobs), seconds)(records)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("cat >/dev/null; echo hello", "wrote a line that is not JSON"),
        ("awk '{print; print}'", "wrote several records for one input"),
        ("sed 's/\"n/\"m/'", "a record that does not belong to an input"),
        ("echo oh dear >&2; exit 3", "status 3 before it wrote this record. Its last message was: oh dear"),
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
    assert all("The command took longer than 0.2 seconds" in one["error"]["message"] for one in found)
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
def test_a_metric_says_what_to_measure(metric: str, attack: str, eps: float, params: dict[str, Any]) -> None:
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
