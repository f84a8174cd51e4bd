"""The small table that a terminal shows for --checkpoint."""

from __future__ import annotations

import re

from rbtools.cli import tables

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
