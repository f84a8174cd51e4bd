"""One training by two processes of torchrun, on the CPU with gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rbtools.models import checkpoint
from rbtools.store import Store
from tests.runner import lines, one, run

CODE = """
from torch import nn


def network(classes):
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, classes))
"""
OPTIONS = (
    "--method trades --attack-steps 1 --epochs 2 --batch-size 301 --val 0.05 --regularize awp"
    " --allow-code --device cpu --threads 1"
)


def test_two_processes_train_as_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A network without BatchNorm: each process has half of every batch, and the weights are those of one."""
    Path("network_of_two.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    given, missing = (
        {"arch": {"space": "python", "name": f"network_of_two:{name}"}} for name in ("network", "missing")
    )
    command = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2"
    command += f" -m rbtools.commands.train {OPTIONS} --store two"
    two = subprocess.run(
        command.split(), input=lines(given, missing), capture_output=True, text=True, timeout=300
    )
    done, failed = map(json.loads, two.stdout.splitlines())
    assert "has no function missing" in failed["error"]["message"] and "error" not in done
    assert two.stderr.count("1 computed, 0 found in the store, 1 failed.") == 1  # process 0 alone speaks
    alone = one(run("train", f"{OPTIONS} --store one", [given]))
    assert done["train"]["processes"] == 2 and "processes" not in alone["train"]
    assert done["train"]["passes"] == alone["train"]["passes"]
    for name in ("loss", "acc", "robust_acc", "val_acc"):
        assert done["train"]["history"][name] == pytest.approx(alone["train"]["history"][name], rel=0.02)
    weights = [
        checkpoint.read(Store(folder).object(record["checkpoint"])).state
        for folder, record in (("two", done), ("one", alone))
    ]
    for name, value in weights[1].items():
        torch.testing.assert_close(weights[0][name], value, rtol=1e-2, atol=1e-4)


def test_what_several_processes_cannot_do_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for words, option in (("--jobs 2", "--jobs"), ("--engine ray", "--engine ray")):
        result = run("train", words)
        assert result.exit_code == 2
        assert f"2 processes train one network together, and {option}" in result.stderr
