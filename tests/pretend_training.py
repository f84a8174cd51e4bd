"""Short trainings on the pretend device by rb-train's own code; launches and waits of a step."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from rbtools.execution.run import Run
from rbtools.store import Store
from rbtools.trainer.recipe import Recipe
from rbtools.trainer.train_model import train
from rbtools.training import METHODS
from tests.pretend_device import PretendDevice

# Small settings of methods whose default ones make many passes.
SMALL: dict[str, dict[str, Any]] = {
    "cvar": {"samples": 2, "rounds": 2},
    "evar": {"samples": 2},
    "at-pr": {"candidates": 1, "steps_min": 1, "steps_max": 2, "walk_steps": 2},
}
ARCH = {
    "space": "nasbench201",
    "str": "|nor_conv_3x3~0|+|none~0|none~1|+|skip_connect~0|none~1|none~2|",
    "channels": 2,
    "cells": 1,
}


class StepCounts(NamedTuple):
    """waits: of two steps, by kind and line. launches, waits_of_a_step: means of the two."""

    waits: set[tuple[str, str]]
    launches: float
    waits_of_a_step: float


def small_method(name: str) -> Any:
    """A training method of few passes."""
    fields = METHODS.load(name).__dataclass_fields__
    return METHODS.build(name, **SMALL.get(name, {"attack_steps": 2} if "attack_steps" in fields else {}))


def trained_for(
    steps: int, method: Any, device: str, arch: dict[str, Any] = ARCH, precision: str = "fp32", **recipe: Any
) -> dict[str, Any]:
    """The record of a training of so many steps of 4 images."""
    with tempfile.TemporaryDirectory() as folder:
        record = {"schema": 1, "arch": arch, "dataset": data_of(Path(folder), steps)}
        store = Store(Path(folder) / "store")
        run = Run.of(tool="rb-train", store=store, device=device, threads=1, precision=precision)
        return train(record, method, Recipe(**{"epochs": 1, "batch_size": 4, "val": 0.0, **recipe}), run)


def data_of(folder: Path, steps: int, batch: int = 4) -> str:
    """A data set for that many steps of training."""
    random, arrays = np.random.default_rng(0), {}
    for split, count in (("train", steps * batch), ("test", 4)):
        arrays[f"x_{split}"] = random.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
        arrays[f"y_{split}"] = np.arange(count) % 4
    np.savez(folder / "data.npz", **arrays)
    return f"npz:{folder / 'data.npz'}"


def counts_of_steps(method: Any, **more: Any) -> StepCounts:
    """What the third and fourth step of a training launch and wait for: the first two fill caches.

    `more`: the arch, the precision, or fields of the recipe.
    """
    from rbtools.trainer import loop

    step = loop.train_step
    launches: list[int] = []
    waits: list[Counter[tuple[str, str]]] = []
    with PretendDevice() as device:

        def counted(*args: Any) -> Any:
            device.reset()
            worst = step(*args)
            launches.append(device.launches.total())
            waits.append(device.waits.copy())
            return worst

        with mock.patch.object(loop, "train_step", counted):
            trained_for(4, method, "cuda", **more)
    both = waits[2] + waits[3]
    return StepCounts(set(both), sum(launches[2:]) / 2, both.total() / 2)
