"""Snapshots of every tool, as far as they are the same on any processor (bench/snapshots.py).

A change that means to change records, messages or store keys writes the golden file anew, and the diff of
that file says what changed: `RBTOOLS_WRITE_GOLDEN=1 python -m pytest tests/test_snapshots.py`
"""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent / "golden" / "snapshots.json"
BENCH = str(Path(__file__).resolve().parents[1] / "bench")
pytestmark = pytest.mark.xdist_group("snapshots")  # one process takes them all


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The golden file's content as it is now: keys alone, and no computed values."""
    folder = tmp_path_factory.mktemp("snapshots")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCH)
        patch.chdir(folder)
        patch.setenv("RB_STORE", str(folder / "store"))
        module = importlib.import_module("snapshots")
        steps = module.take(folder, [module.GIVEN, module.FORMULA])
    given = {record["mark"]: record for record in module.given_records()}
    computed = module.FORMULA.splitlines()
    for name, step in steps.items():
        step["keys"] = list(step["keys"])
        step["stdout"] = [
            short(line, given.get(line.get("mark"))) if isinstance(line, dict) else line
            for line in step["stdout"]
        ]
        if name in computed:
            step["stdout"] = module.masked(step["stdout"])
            if step["status"] == 0:
                del step["stderr"]  # warnings depend on how many images are right
    made: dict[str, Any] = json.loads(json.dumps(steps), parse_float=nine_digits)
    if os.environ.get("RBTOOLS_WRITE_GOLDEN"):
        lines = (f"{json.dumps(name)}: {{\n{fields(step)}\n}}" for name, step in made.items())
        GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    return made


def nine_digits(text: str) -> float:
    """A number without its last digits, which depend on the order of sums."""
    return float(f"{float(text):.9g}") if abs(float(text)) > 1e-12 else 0.0


def short(value: Any, source: Any) -> Any:
    """A value with "as given" in place of each object in it that went out as it came in."""
    if value == source and isinstance(value, (dict, list)):
        return "as given"
    if isinstance(value, list) and isinstance(source, list):
        return ["as given" if item in source else item for item in value]
    if isinstance(value, dict) and isinstance(source, dict):
        return {key: short(item, source.get(key)) for key, item in value.items()}
    return value


def fields(step: dict[str, Any]) -> str:
    return ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in step.items())


def test_every_tool_has_steps(snapshots: dict[str, Any]) -> None:
    module = importlib.import_module("snapshots")
    tools = {
        line.partition(":")[2].split()[0] for group in module.STEPS for line in group.split("\n") if line
    }
    assert tools == set(module.TOOLS)


# Absent only while it is written for the first time.
GOLDEN_STEPS = json.loads(GOLDEN.read_text("utf-8")) if GOLDEN.is_file() else {}


@pytest.mark.parametrize("name", GOLDEN_STEPS)
def test_step_is_as_before(name: str, snapshots: dict[str, Any]) -> None:
    assert snapshots[name] == GOLDEN_STEPS[name]


def test_golden_file_has_every_step(snapshots: dict[str, Any]) -> None:
    assert list(snapshots) == list(GOLDEN_STEPS)
