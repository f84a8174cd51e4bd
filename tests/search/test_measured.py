"""Searching without training, by a measure that is computed on demand."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import Result

from rbtools.search.live import request_of
from tests import runner
from tests.search.landscapes import slope, table_file


def search(words: str) -> Result:
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
    result = search(f"--measure naswot --budget 2 --table {table_file('table.jsonl')}")
    one = runner.one(result)
    section = one.pop("search")
    index = one["arch"]["index"]
    arch = {key: one["arch"][key] for key in ("space", "name", "index", "channels", "cells")}
    again = runner.run("measure", "naswot --device cpu --store none", [{"schema": 1, "arch": arch}])
    assert runner.one(again)["metrics"]["naswot"] == section["values"]["naswot"]
    assert section["looked_up"]["table.jsonl"]["metrics"]["acc"]["mean"] == slope(index)
    assert "2 of 6466 architectures were evaluated for naswot" in result.stderr


def test_a_measure_that_needs_trained_weights_fails_record_by_record() -> None:
    result = search("--measure wci --budget 2")
    assert result.exit_code == 1 and result.stdout == ""
    assert result.stderr.count("needs trained weights") == 2
    assert "nothing was found: every evaluation failed" in result.stderr
