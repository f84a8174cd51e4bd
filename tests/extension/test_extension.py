"""A package with one file and one entry point for each class: every tool then knows its threat and attacks.

All tools run in processes of their own, because a process looks for installed packages once.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rbtools.cli.declare import TOOLS
from tests.extension import shifts

Record = dict[str, Any]
pytestmark = pytest.mark.processes
N = 40
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like site-packages with the extension, and the record of a trained network."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(str(shifts.__file__), folder / "shifts.py")
    about = folder / "shifts-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shifts\nVersion: 1\n")
    points = "shift = shifts:ShiftSearch\nlabel-walk = shifts:LabelWalk\n"
    kinds = "[rbtools.models]\nbrightest = shifts:Brightest\n"
    (about / "entry_points.txt").write_text(f"[rbtools.attacks]\n{points}{kinds}")
    arch = rb(folder, "arch", "--sample 1 --seed 3 --cells 1 --channels 4")
    trained = rb(folder, "train", "--method erm --epochs 2 --dataset digits", arch)
    (folder / "trained.jsonl").write_text(trained)
    return folder


def started(site: Path, *words: str) -> subprocess.Popen[str]:
    """Python with these words, and the extension among its packages."""
    path = os.pathsep.join([str(site), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "RB_STORE": str(site / "store"), "OMP_NUM_THREADS": "1"}
    streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, *words], cwd=site, env=environment, text=True, **streams)


def python(site: Path, program: str) -> str:
    output, messages = started(site, "-c", program).communicate(timeout=300)
    assert output, messages
    return output


def rb(site: Path, tool: str, words: str, given: str = "", status: int = 0) -> str:
    """Standard output of `rb-TOOL WORDS`; the messages, if it fails as expected."""
    process = started(site, "-m", TOOLS[tool].partition(":")[0], *words.split())
    output, messages = process.communicate(given, timeout=300)
    assert process.returncode == status, messages
    return messages if status else output


def only(output: str) -> Record:
    record: Record = json.loads(output)
    return record


@pytest.fixture(scope="module")
def attacked(site: Path) -> Record:
    shifted = rb(site, "attack", f"shift --pixels 0-2 --n {N} trained.jsonl")
    walked = rb(site, "attack", f"label-walk --eps 8 --n {N}", shifted)
    record = only(rb(site, "attack", f"pgd --steps 5 --eps 8 --n {N}", walked))
    (site / "attacked.jsonl").write_text(json.dumps(record))
    return record


def test_the_help_has_its_options(site: Path) -> None:
    text = rb(site, "attack", "shift --help")
    assert "--pixels LIST" in text and "--eps" not in text and "--two-phase" not in text
    told = rb(site, "attack", "shift --eps 8 trained.jsonl", status=2)
    assert "shift has no option '--eps', because its threat is not a ball. Give --pixels LIST." in told
    assert "shift, label-walk" in rb(site, "attack", "--help")


def test_every_shift_was_tried(site: Path, attacked: Record) -> None:
    values = [attacked["metrics"][f"shift.{k}"] for k in range(3)]
    assert values == sorted(values, reverse=True) and values[0] == attacked["metrics"]["acc"] > values[1]
    (entry,) = [one for one in attacked["evals"] if one["metric"] == "shift.2"]
    assert (entry["threat"], entry["pixels"]) == ("shift", 2) and "eps" not in entry
    program = """
import itertools, json, torch, rbtools
from rbtools.datasets.indices import subset
model, digits = rbtools.load(json.load(open("trained.jsonl"))), rbtools.datasets.load("digits", "test")
order = subset(digits.labels, N, seed=0)
images, labels = digits.images[order].float() / 255, digits.labels[order]
correct = torch.ones(len(labels), dtype=torch.bool)
for down, right in itertools.product((-1, 0, 1), repeat=2):
    padded = torch.nn.functional.pad(images, (1, 1, 1, 1))
    correct &= model(padded[..., 1 - down : 9 - down, 1 - right : 9 - right]).argmax(1) == labels
print(correct.double().mean().item())
"""
    assert float(python(site, program.replace("N", str(N)))) == values[1]


def test_an_attack_on_labels_is_one_in_its_ball(attacked: Record) -> None:
    (entry,) = [one for one in attacked["evals"] if one["metric"] == "label-walk.8"]
    assert entry["norm"] == "linf" and entry["passes"]["backward"] == 0
    assert attacked["metrics"]["pgd5.8"] <= entry["value"] <= attacked["metrics"]["acc"]


def test_a_killed_run_goes_on(site: Path) -> None:
    """Of three strengths, the first is in the store when the run is killed."""
    words = "shift --pixels 0,1,4 --store killed trained.jsonl".split()
    shutil.copytree(site / "store", site / "killed")
    before = len([*(site / "killed").rglob("*")])
    process = started(site, "-m", "rbtools.commands.attack", *words)
    deadline = time.monotonic() + 120
    while len([*(site / "killed").rglob("*")]) < before + 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len([*(site / "killed").rglob("*")]) >= before + 2
    again = only(rb(site, "attack", " ".join(words)))
    anew = only(rb(site, "attack", "shift --pixels 0,1,4 --force trained.jsonl"))
    assert again["metrics"] == anew["metrics"]


def test_generalisation_error_transfer_and_two_phase(site: Path) -> None:
    metrics = only(rb(site, "ge", f"attack shift --pixels 1 --n {N} trained.jsonl"))["metrics"]
    assert metrics["ge.shift.1"] == pytest.approx(metrics["train.shift.1"] - metrics["shift.1"])
    words = f"transfer --from trained.jsonl --attack shift --pixels 1 --n {N} trained.jsonl"
    assert only(rb(site, "attack", words))["metrics"]["transfer.shift.1"] == metrics["shift.1"]
    refusal = rb(site, "attack", f"shift --two-phase 20 --n {N} trained.jsonl", status=2)
    assert "shift has no option '--two-phase', because its threat is not a ball." in refusal
    words = f"label-walk --eps 8 --two-phase all --n {N} trained.jsonl"
    assert "two_phase" in only(rb(site, "attack", words))["evals"][-1]


def test_a_curve_runs_over_the_strength(site: Path, attacked: Record) -> None:
    curve = only(rb(site, "attack", f"curve --attacks shift --eps 0-2 --n {N} trained.jsonl"))
    for k in range(3):
        assert curve["metrics"][f"shift.{k}"] == attacked["metrics"][f"shift.{k}"]
    verdicts = only(rb(site, "verify", "", json.dumps(curve)))["verify"]["entries"]
    assert {verdicts[name]["verdict"] for name in curve["metrics"] if "shift" in name} == {"match"}


def test_verification_judges_it(site: Path, attacked: Record) -> None:
    verdicts = only(rb(site, "verify", "attacked.jsonl"))["verify"]
    names = ("shift.0", "shift.1", "shift.2", "label-walk.8")
    assert [verdicts["entries"][name]["verdict"] for name in names] == ["match"] * 4
    assert not verdicts["inconsistent"]
    edited = json.loads(json.dumps(attacked))
    for entry in edited["evals"]:
        if entry["metric"] == "shift.2":
            entry["value"] = edited["metrics"]["shift.2"] = 0.9
    told = rb(site, "verify", "", json.dumps(edited), status=1)
    assert "shift.2" in told and "differs" in told


def test_saved_images_are_judged_by_their_points(site: Path) -> None:
    record = rb(site, "attack", f"shift --pixels 0,1 --n {N} --save-adv adv trained.jsonl")
    verdicts = only(rb(site, "verify", "--adv adv", record))["verify"]["entries"]
    assert [verdicts[f"shift.{k}"]["verdict"] for k in (0, 1)] == ["match", "match"]
    (path,) = (site / "adv").glob("*shift.1-*.npz")
    arrays = dict(np.load(path))
    points, claim = arrays["points"], json.loads(str(arrays["claim"]))
    others: list[dict[str, Any]] = [
        {"points": np.concatenate([np.full_like(points[:1], 2), points[1:]])},
        {"points": points[:, 0]},
        {"points": points[:, :0]},
        {"images": np.concatenate([1 - arrays["images"][:1], arrays["images"][1:]])},
    ]
    claims = [{"metric": "shift.0", "pixels": None}, {"threat": "ball"}, {"pixels": 0}, {"metric": "pgd20.8"}]
    for change in claims:
        edited = {name: value for name, value in {**claim, **change}.items() if value is not None}
        others.append({"claim": np.array(json.dumps(edited))})
    alone = json.dumps({**json.loads(record), "metrics": {}, "evals": [], "checksums": {}})
    for change in others:
        np.savez(site / "edited.npz", **{**arrays, **change})
        messages = rb(site, "verify", "--adv edited.npz", alone, status=1)
        assert "differs" in messages and "Traceback" not in messages, change


def test_tables_figures_and_files_know_it(site: Path, attacked: Record) -> None:
    columns = "--metric shift.2,label-walk.8,union(shift.2,pgd5.8)"
    table = rb(site, "rank", f"{columns} --format md attacked.jsonl")
    assert "Shift, 2 pixels" in table and "Label walk, ε = 8/255" in table
    assert "Shift, 2 pixels" in rb(site, "rank", f"{columns} --format latex attacked.jsonl")
    joined = only(rb(site, "rank", "--by union(shift.1,pgd5.8) --format jsonl attacked.jsonl"))
    assert joined["rank"] == 1
    rb(site, "plot", "curves --over pixels -o curve.svg attacked.jsonl")
    refusal = rb(site, "plot", "curves --over pixel -o curve.svg attacked.jsonl", status=2)
    assert (site / "curve.svg").stat().st_size > 1000 and "Did you mean 'pixels'?" in refusal
    rb(site, "convert", "csv --write table.csv attacked.jsonl")
    back = only(rb(site, "convert", "csv table.csv"))
    assert {name: back["metrics"][name] for name in ("shift.1", "label-walk.8")} == {
        name: attacked["metrics"][name] for name in ("shift.1", "label-walk.8")
    }


def test_a_function_from_images_to_labels_is_a_model(site: Path) -> None:
    made = rb(site, "arch", "--arch python:shifts:brightest --dataset digits --allow-code")
    walked = rb(site, "attack", f"label-walk --eps 30 --n {N} --allow-code", made)
    record = only(rb(site, "attack", f"shift --pixels 1 --n {N} --allow-code", walked))
    assert {"acc", "label-walk.30", "shift.1"} <= record["metrics"].keys()
    refusal = rb(site, "attack", f"pgd --n {N} --allow-code", made, status=1)
    assert "the model returns only labels" in refusal and "label-walk" in refusal
    program = f"""
import rbtools, shifts
digits = rbtools.datasets.load("digits", "test")
tasks = ["acc", shifts.ShiftSearch(pixels=1), shifts.LabelWalk(eps=30 / 255)]
found = rbtools.evaluate(shifts.brightest(10), (digits.images, digits.labels), tasks, n={N})
print(*(one.value for one in found))
"""
    values = [record["metrics"][name] for name in ("acc", "shift.1", "label-walk.30")]
    assert list(map(float, python(site, program).split())) == values


def test_a_randomised_model_is_refused_or_drawn_once(site: Path) -> None:
    program = f"""
import torch, rbtools, shifts
from rbtools.errors import RbError
digits = rbtools.datasets.load("digits", "test")
network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
data, attack = (digits.images[:{N}], digits.labels[:{N}]), shifts.ShiftSearch(pixels=1)
noisy = lambda images: network(images + 0.3 * torch.randn_like(images))
try:
    rbtools.evaluate(noisy, data, attack)
except RbError as wrong:
    print(wrong)
print(rbtools.evaluate(noisy, data, attack, draws=1).metric)
"""
    said = python(site, program)
    assert "the attack shift cannot average gradients over random draws" in said
    assert said.endswith("shift.1\n")


def test_a_threat_that_is_not_complete_is_named(site: Path) -> None:
    program = """
import dataclasses, rbtools, shifts
from rbtools.errors import RbError
digits = rbtools.datasets.load("digits", "test")

@dataclasses.dataclass(frozen=True, kw_only=True)
class Bad(shifts.Shift):
    name = "bad"
    def images(self, points, images):
        return images - 1

@dataclasses.dataclass(frozen=True, kw_only=True)
class BadSearch(shifts.ShiftSearch):
    within = Bad

@dataclasses.dataclass(frozen=True, kw_only=True)
class NoField(shifts.LabelWalk):
    within = shifts.Shift

for attack in (BadSearch(), NoField()):
    try:
        rbtools.evaluate(shifts.brightest(10), (digits.images[:8], digits.labels[:8]), attack)
    except RbError as wrong:
        print(wrong)
"""
    said = python(site, program)
    assert "The threat bad returned values outside [0, 1]" in said
    assert "uses 'pixels', a field which the attack does not have" in said


def test_its_kind_of_model_is_evaluated_and_recognised_in_a_record(site: Path) -> None:
    assert "--model-brightest CLASSES" in rb(site, "attack", "label-walk --help")
    words = f"label-walk --eps 64 --starts 2 --n {N}"
    record = only(rb(site, "attack", f"{words} --model-brightest 10"))
    assert record["arch"]["kind"] == "brightest" and "label-walk.64" in record["metrics"]
    again = only(rb(site, "attack", "shift --pixels 1 --n 20 --allow-code", json.dumps(record)))
    assert again["metrics"]["shift.1"] <= record["metrics"]["acc"]
    refused = rb(site, "attack", f"pgd --eps 8 --n {N} --model-brightest 10", status=1)
    assert "The attack pgd needs gradients, but the model returns only labels" in refused
    assert "label-walk" in refused and "shift" in refused
