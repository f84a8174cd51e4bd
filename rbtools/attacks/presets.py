"""The attacks that the papers report, with their distances."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from rbtools import units
from rbtools.errors import unknown


@dataclass(frozen=True)
class PresetAttack:
    """One attack of a preset, its distances in pixel units, and its parameters other than defaults."""

    attack: str
    eps: tuple[float, ...]
    params: dict[str, Any] = field(default_factory=dict)


def _of255(*numbers: float) -> tuple[float, ...]:
    return tuple(number / 255 for number in numbers)


_LAST = {"iterate": "last"}
_GRID = _of255(0.1, 0.5, 1, 2, 3, 4, 8)
_STEP = 2 / 255

PRESETS: dict[str, tuple[PresetAttack, ...]] = {
    # Jung et al. 2023 (Neural Architecture Design and Robustness: A Dataset): foolbox' FGSM and PGD, 40 steps
    # of 0.01/0.3 of eps; APGD-CE and Square as in AutoAttack. The text gives the relative step only.
    "jung2023": (
        PresetAttack("fgsm", _of255(0.1, 0.5, 1, 2, 3, 4, 5, 6, 7, 8, 255)),
        PresetAttack("pgd", _GRID, {"steps": 40, "relative_step": 0.01 / 0.3, **_LAST}),
        PresetAttack("apgd-ce", _GRID),
        PresetAttack("square", _GRID),
    ),
    # NAS-RobBench-201: PGD-20 with a step of 2.5*eps/20.
    "nasrobbench201": (
        PresetAttack("fgsm", _of255(3, 8)),
        PresetAttack("pgd", _of255(3, 8), {"steps": 20, **_LAST}),
        PresetAttack("aa", _of255(8)),
    ),
    # PRBench: the only step it states is 2/255; CW-20 is PGD-20 on the margin.
    "prbench": (
        PresetAttack("pgd", _of255(8), {"steps": 10, "step_size": _STEP, **_LAST}),
        PresetAttack("pgd", _of255(8), {"steps": 20, "step_size": _STEP, **_LAST}),
        PresetAttack("cw", _of255(8), {"steps": 20, "step_size": _STEP, **_LAST}),
        PresetAttack("aa", _of255(8)),
    ),
    # Its code (wellzline/PRBenchmark, evaluate.py): the same except for CW's margin.
    "prbench-code": (
        PresetAttack("pgd", _of255(8), {"steps": 10, "step_size": _STEP, **_LAST}),
        PresetAttack("pgd", _of255(8), {"steps": 20, "step_size": _STEP, **_LAST}),
        PresetAttack("cw", _of255(8), {"steps": 20, "step_size": _STEP, "kappa": 2.0, **_LAST}),
        PresetAttack("aa", _of255(8)),
    ),
    # Rice et al. 2020 (robust_overfitting), which the Weight-Curvature Index follows.
    "rice2020": (PresetAttack("pgd", _of255(8), {"steps": 10, "step_size": _STEP, **_LAST}),),
}


def preset(name: str, eps: tuple[float, ...] | None = None) -> tuple[PresetAttack, ...]:
    """The attacks of a preset, at its own distances or at `eps`. Raises RbError for an unknown name.

    Where a published step size cannot reach a distance of `eps`, the attack's default is used.
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    if eps is None:
        return PRESETS[name]
    parts = []
    for part in PRESETS[name]:
        params = part.params
        reach = params["step_size"] * params["steps"] if "step_size" in params else math.inf
        near = tuple(one for one in eps if units.reaches(reach, one))
        far = tuple(one for one in eps if one not in near)
        own = {key: value for key, value in params.items() if key != "step_size"}
        parts += [
            PresetAttack(part.attack, some, values) for some, values in ((near, params), (far, own)) if some
        ]
    return tuple(parts)
