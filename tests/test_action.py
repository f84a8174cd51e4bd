"""action.yml: its steps run as a forge runs them, in a clean folder, with rbtools installed already."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests import runner

ROOT = Path(__file__).resolve().parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
INSTALL, *STEPS = ACTION["runs"]["steps"]


def gated(folder: Path, **inputs: str) -> tuple[int, str]:
    """Run the steps of the action with these inputs, as a forge does: the status of the first step that
    fails, or 0; and what was said.
    """
    given = {name: str(one.get("default", "")) for name, one in ACTION["inputs"].items()} | inputs
    assert set(given) == set(ACTION["inputs"])
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {"PATH": tools, "HOME": str(folder), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    files = {"GITHUB_STEP_SUMMARY": "summary.md", "GITHUB_OUTPUT": "output", "RUNNER_TEMP": "temp"}
    env |= {name: str(folder / file) for name, file in files.items()}
    said = ""
    for step in STEPS:
        own = {
            name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: given[found[1]], text)
            for name, text in step.get("env", {}).items()
        }
        words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(words, cwd=folder / "work", env=env | own, capture_output=True, text=True)
        said += done.stderr
        if done.returncode:
            return done.returncode, said
    return 0, said


def test_inputs_reach_the_scripts_through_the_environment_only() -> None:
    assert all("${{" not in step["run"] for step in (INSTALL, *STEPS))
    assert INSTALL["run"].endswith(
        'python -m pip install --quiet --constraint "$pins" "$GITHUB_ACTION_PATH"\n'
    )
    assert (
        '--index-url "$INDEX" --no-deps torch torchvision\n' in INSTALL["run"]
    )  # the rest is not from there
    assert {one["value"] for one in ACTION["outputs"].values()} == {
        f"${{{{ steps.gate.outputs.{name} }}}}" for name in ACTION["outputs"]
    }


def trained(store: Path) -> str:
    """A record of a small network, trained for one epoch on digits."""
    words = "--index 13714 --cells 1 --channels 4 --dataset digits"
    record = runner.one(runner.run("arch", words))
    return runner.lines(runner.one(runner.run("train", f"--epochs 1 --store {store}", [record])))


@pytest.mark.smoke
@pytest.mark.skipif(not shutil.which("bash"), reason="the steps are of bash")
@pytest.mark.slow
def test_the_steps_gate_a_model_and_write_a_table(tmp_path: Path) -> None:
    for name in ("temp", "work"):
        (tmp_path / name).mkdir()
    baseline, summary = tmp_path / "work" / "robustness-baseline.jsonl", tmp_path / "summary.md"
    (tmp_path / "work" / "my models.jsonl").write_text(trained(tmp_path / "work" / "rb-store"))
    inputs: dict[str, Any] = {
        "evaluate": "fgsm --eps 8 --n 40\n --dataset digits 'my models.jsonl'",
        "by": "fgsm.8",
        "assert": "fgsm.8 >= reference - .01\n",
        "assert-point": "acc >= 0\nacc <= 1\n",
    }
    status, said = gated(tmp_path, **inputs)
    assert status == 0 and "no baseline" in said and not baseline.exists(), said
    assert "### Robustness (compare-only)" in summary.read_text()
    inputs["update-baseline"] = "true"
    status, said = gated(tmp_path, **inputs)
    assert status == 0 and "is now" in said, said
    assert "### Robustness" in summary.read_text() and "| FGSM, ε = 8/255" in summary.read_text()
    accepted = json.loads(baseline.read_text())
    assert "fgsm.8" in accepted["metrics"]
    outputs = dict(line.split("=", 1) for line in (tmp_path / "output").read_text().splitlines())
    report = ElementTree.parse(outputs["junit"]).getroot().attrib
    assert (report["tests"], report["failures"]) == ("3", "0")

    # A condition that fails: the baseline stays, and the report and the summary say why.
    status, said = gated(tmp_path, **{**inputs, "assert": "fgsm.8 >= reference + .5"})
    assert "the baseline in robustness-baseline.jsonl is nb201-13714" in said
    assert status == 1 and "does not hold" in said and "does not hold" in summary.read_text()
    assert json.loads(baseline.read_text()) == accepted
    assert ElementTree.parse(outputs["junit"]).getroot().attrib["failures"] == "1"
