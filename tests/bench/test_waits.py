"""Launches and waits: all that is registered has a line, and a training step is rb-train's own."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rbtools.attacks import ATTACKS
from rbtools.training import METHODS

pytestmark = pytest.mark.slow
BENCH = Path(__file__).resolve().parents[2] / "bench"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[f"bench_{name}"] = found
    spec.loader.exec_module(found)
    return found


def test_every_attack_and_method_and_every_row_of_the_table_has_a_step() -> None:
    names = {name for name, _, _ in module("waits").works()}
    assert set(ATTACKS) - names == {"aa"}
    assert {name.removeprefix("training by ").partition(",")[0] for name in names} >= set(METHODS)
    assert {row.step for row in module("gpu_table").ROWS} <= names


def test_a_training_step_has_its_augmentation_and_its_attack() -> None:
    waits = module("waits")
    erm, short, long = (
        waits.training(name, options)
        for name, options in (("erm", {}), ("pgd", {"attack_steps": 1}), ("pgd", {"attack_steps": 3}))
    )
    assert erm["launches"] > 140, "without augmentation there are 135, and a bare step has 113"
    step = (long["launches"] - short["launches"]) / 2
    assert 50 < step < 110, "an attack step's launches: the copy has no BatchNorm"
    assert not erm["waits"] and not long["waits"]


def test_an_attack_that_would_end_by_itself_makes_all_its_steps() -> None:
    work = {name: count for name, _, count in module("waits").works()}
    assert work["cw-l2"]()["launches"] > 100
