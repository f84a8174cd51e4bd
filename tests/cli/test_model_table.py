"""The small table that a terminal shows for --checkpoint."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from pathlib import Path

import pytest
import torch

from rbtools.cli import tables
from rbtools.models import build

RECORD = {
    "arch": {"name": "resnet18"},
    "dataset": "cifar10",
    "metrics": {"acc": 0.9, "pgd20.8": 0.5, "corrupt.mce": 1.2},
    "evals": [
        {"metric": "acc", "value": 0.9, "n": 10, "split": "test", "ci95": [0.6, 0.98]},
        {"metric": "pgd20.8", "value": 0.5, "n": 10, "split": "test", "ci95": [0.2, 0.8]},
    ],
}


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]


def test_a_row_for_each_metric_with_interval_images_and_split() -> None:
    shown = rows(tables.model_table(RECORD, 80))
    assert shown[0] == ["resnet18,", "cifar10"]
    assert shown[1] == ["metric", "value", "n", "split"]
    assert shown[3] == ["acc", "0.9000", "[0.6000,", "0.9800]", "10", "test"]
    assert shown[5] == ["corrupt.mce", "1.2"]


def test_a_failed_record_shows_its_error_and_what_was_measured() -> None:
    failed = {**RECORD, "error": {"tool": "rb-pr", "message": "The GPU is\x1b[31m gone."}}
    shown = tables.model_table(failed, 80)
    assert "error: The GPU is\ufffd[31m gone." in shown and "pgd20.8" in shown


def test_a_record_without_results_is_named() -> None:
    assert tables.model_table({}, 80).splitlines()[-1].startswith("(a pipe")


@pytest.mark.processes
def test_a_terminal_gets_the_table_and_a_pipe_the_record() -> None:
    torch.manual_seed(0)
    network = build({"space": "zoo", "name": "simplecnn"}, classes=10, shape=(1, 8, 8))
    torch.save(network.state_dict(), "model.pt")
    command = ["rb-attack", "none", "--n", "10", "--checkpoint", "model.pt", "--arch", "simplecnn"]
    command += ["--dataset", "digits", "--normalize", "none", "-q"]
    piped = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    assert list(json.loads(piped)["metrics"]) == ["acc"]
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL) as process:
        os.close(theirs)
        shown = b""
        while piece := _read(ours):
            shown += piece
        assert process.wait(60) == 0
    os.close(ours)
    found = rows(shown.decode())
    assert ["metric", "value", "n", "split"] in found
    assert any(row[:1] == ["acc"] and row[-2:] == ["10", "test"] for row in found)
    assert Path("rb-store").is_dir()


def _read(handle: int) -> bytes:
    try:
        return os.read(handle, 65536)
    except OSError:  # Linux says so where the other end is closed
        return b""
