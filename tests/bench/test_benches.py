"""Each bench that needs neither a training nor another package runs, at its smallest size."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rbtools.attacks import ATTACKS
from rbtools.training import METHODS

BENCH = Path(__file__).resolve().parents[2] / "bench"


def module(name: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        return importlib.import_module(name)


@pytest.mark.slow
def test_every_part_of_the_bench_of_a_gpu_runs_on_the_cpu_and_its_checks_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = "floor,verdicts,resume,train,robust,attack,aa,pr,profile,passes"
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--small", "--device", "cpu", "--parts", parts])
    module("gpu").main()
    first, *found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert first["machine"] == "cpu" and first["small"]
    assert {"PGD-20, any iterate", "at-pr, an epoch"} <= {one["figure"] for one in found}
    assert len([one for one in found if "reference" in one]) == 10
    assert all(one.get("good", True) for one in found)


@pytest.mark.slow
def test_every_attack_and_method_has_a_step_whose_launches_and_waits_are_counted() -> None:
    waits = module("waits")
    names = {name for name, _, _ in waits.works()}
    assert set(ATTACKS) - names == {"aa"} and {row.step for row in module("gpu_table").ROWS} <= names
    assert {name.removeprefix("training by ").partition(",")[0] for name in names} >= set(METHODS)
    short, long = (waits.training("pgd", {"attack_steps": steps}) for steps in (1, 3))
    assert 50 < (long["launches"] - short["launches"]) / 2 < 110 and not long["waits"]


def test_the_page_is_printed_from_the_figures() -> None:
    check = subprocess.run([sys.executable, BENCH / "results.py", "--check"], capture_output=True, text=True)
    assert check.returncode == 0, check.stderr or "bench/RESULTS.md is stale: python bench/results.py"
