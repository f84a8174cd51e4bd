"""Searching without training, by a measure that is computed on demand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rbtools.commands import measure as rb_measure
from rbtools.search.search import main
from rbtools.search.search_command import request_of
from rbtools.spaces import nasbench201
from tests.search.landscapes import record, slope

SIZES = ["--channels", "2", "--cells", "1", "--device", "cpu"]


def search(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["random", *arguments, *SIZES])


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


def test_what_is_searched_by_is_what_rb_measure_says(tmp_path: Path) -> None:
    rows = [json.dumps(record(index, acc=slope(index))) for index in nasbench201.unique()]
    (tmp_path / "table.jsonl").write_text("\n".join(rows) + "\n")
    result = search("--measure", "naswot", "--budget", "2", "--table", "table.jsonl")
    assert result.exit_code == 0, result.stderr
    one = json.loads(result.stdout)
    section = one.pop("search")
    index = one["arch"]["index"]
    arch = {key: one["arch"][key] for key in ("space", "name", "index", "channels", "cells")}
    line = json.dumps({"schema": 1, "arch": arch}) + "\n"
    again = CliRunner().invoke(rb_measure.main, ["naswot", "--device", "cpu", "--store", "none"], input=line)
    assert json.loads(again.stdout)["metrics"]["naswot"] == section["values"]["naswot"]
    assert section["looked_up"]["table.jsonl"]["metrics"]["acc"]["mean"] == slope(index)
    assert "2 of 6466 architectures were evaluated for naswot" in result.stderr


def test_a_measure_that_needs_trained_weights_fails_record_by_record() -> None:
    result = search("--measure", "wci", "--budget", "2")
    assert result.exit_code == 1 and result.stdout == ""
    assert result.stderr.count("needs trained weights") == 2
    assert "nothing was found: every evaluation failed" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--measure", "nask"], "Unknown measure 'nask'"),
        (["--measure", "naswot", "--live", "cat"], "Give one of them"),
        (["--measure", "naswot", "--objective", "acc"], "There is no metric or field 'acc'"),
        (["--measure", "naswot", "some.jsonl"], "Name tables to look the findings up in with --table"),
    ],
)
def test_wrong_use_is_refused_in_one_line(arguments: list[str], message: str) -> None:
    result = search(*arguments, "--budget", "1")
    assert (result.exit_code, result.stdout) == (2, "") and message in result.stderr
    assert result.stderr.count("\n") == 1
