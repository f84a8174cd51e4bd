"""Presets of rb-measure: the settings of the papers. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rbtools.errors import UsageError, unknown

ALIASES = {"wci": "rice2020"}


@dataclass(frozen=True)
class MeasurePreset:
    """The settings of a paper: options of `rb-measure`, as typed, and parameters of measures."""

    options: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)


PRESETS: dict[str, MeasurePreset] = {
    # Jung et al. 2023: means over 10 batches of 256, train and test, fresh and trained networks; the largest
    # eigenvalue by PyHessian's power iteration, of the Hessian of the weights.
    "jung2023": MeasurePreset(
        {"batches": 10, "batch_size": 256, "split": "train,test", "on": "both"},
        {"projections": 1, "wrt": "weight", "solver": "power", "iterations": 100, "tolerance": 1e-3},
    ),
    # NAS-RobBench-201: 50 training images at initialisation, at 3/255 and 8/255 by FGSM and PGD.
    "nasrobbench201": MeasurePreset(
        {"batches": 1, "batch_size": 50, "split": "train", "on": "init", "eps": "3,8", "attack": "fgsm,pgd"},
        {"kernel": "twice", "logits": "sum"},
    ),
    # The Weight-Curvature Index attacks as Rice et al. 2020: PGD-10 with steps of 2/255 at 8/255.
    "rice2020": MeasurePreset(
        {"split": "train", "on": "trained", "eps": "8", "attack": "pgd", "attack_steps": 10, "step_size": "2"}
    ),
}


def named(name: str) -> MeasurePreset:
    """The preset of that name. Raises UsageError for an unknown name."""
    preset = PRESETS.get(ALIASES.get(name, name))
    if preset is None:
        raise unknown("preset", name, [*PRESETS, *ALIASES], UsageError)
    return preset
