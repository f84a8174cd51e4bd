"""Entries say what a model did on each image, and records are ranked by that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rbtools
from rbtools.cli.image_answers import ImageAnswers

ARCH = {"space": "nasbench201", "index": 13714, "channels": 2, "cells": 1}


def shares(record: dict[str, Any], entry: dict[str, Any]) -> tuple[np.ndarray, np.ndarray] | None:
    screen: Any = SimpleNamespace(once=pytest.fail)  # nothing is damaged
    return ImageAnswers(screen).shares(record, entry)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Two small networks, attacked, one with --detail."""
    store = str(tmp_path_factory.mktemp("store") / "s")
    found = []
    for seed in (0, 1):
        record = rbtools.train({"arch": ARCH}, epochs=2, batch_size=256, seed=seed, store=store)
        record = rbtools.attack(record, "fgsm", eps=[4], n=60, detail=seed == 1, store=store)
        found.append(rbtools.pr(record, gamma=0.1, rho=[0.1], samples=3, n=60, store=store))
    return found


def test_bits_give_the_value_of_the_entry(records: list[dict[str, Any]]) -> None:
    seen = set()
    for record in records:
        for entry in record["evals"]:
            found = shares(record, entry)
            if found is None:
                assert entry["metric"] in ("seconds_per_epoch", "pr.uniform.0.1")
                continue
            gives, counts = found
            assert gives.dtype == counts.dtype == np.float32 and gives.shape == counts.shape == (60,)
            assert gives.sum() / counts.sum() == pytest.approx(entry["value"])
            seen.add(entry["metric"])
    assert seen == {"acc", "fgsm.4", "probacc.uniform.0.1.0.1"}


def test_which_images_count_is_known_only_by_the_clean_accuracy(records: list[dict[str, Any]]) -> None:
    for record in records:
        (noisy,) = [one for one in record["evals"] if one["metric"].startswith("probacc")]
        alone = shares({**record, "evals": [noisy]}, noisy)
        assert (alone is None) is (noisy["n"] < 60)
