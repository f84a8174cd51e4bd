"""The attacks that the papers report, with their distances."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rbtools.errors import unknown


@dataclass(frozen=True)
class Part:
    """One attack of a preset: eps in 1/255, and how it differs from its defaults."""

    attack: str
    eps: tuple[float, ...]
    params: dict[str, Any] = field(default_factory=dict)


_LAST = {"iterate": "last"}
_GRID = (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 8.0)
_STEP = 2 / 255

PRESETS: dict[str, tuple[Part, ...]] = {
    # Jung et al. 2023 (Neural Architecture Design and Robustness: A Dataset): foolbox' FGSM and PGD, 40 steps
    # of 0.01/0.3 of eps; APGD-CE and Square as AutoAttack has them. Its text gives the relative step only.
    "jung2023": (
        Part("fgsm", (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 255.0)),
        Part("pgd", _GRID, {"steps": 40, "relative_step": 0.01 / 0.3, **_LAST}),
        Part("apgd-ce", _GRID),
        Part("square", _GRID),
    ),
    # NAS-RobBench-201: PGD-20 with a step of 2.5*eps/20.
    "nasrobbench201": (
        Part("fgsm", (3.0, 8.0)),
        Part("pgd", (3.0, 8.0), {"steps": 20, **_LAST}),
        Part("aa", (8.0,)),
    ),
    # PRBench: the only step it states is 2/255; CW-20 is PGD-20 on the margin.
    "prbench": (
        Part("pgd", (8.0,), {"steps": 10, "step_size": _STEP, **_LAST}),
        Part("pgd", (8.0,), {"steps": 20, "step_size": _STEP, **_LAST}),
        Part("cw", (8.0,), {"steps": 20, "step_size": _STEP, **_LAST}),
        Part("aa", (8.0,)),
    ),
    # Rice et al. 2020 (robust_overfitting), which the Weight-Curvature Index follows.
    "rice2020": (Part("pgd", (8.0,), {"steps": 10, "step_size": _STEP, **_LAST}),),
}


def preset(name: str) -> tuple[Part, ...]:
    """The attacks of a preset. Raises RbError for a name that there is not."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]
