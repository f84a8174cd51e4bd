"""Presets, which are named lists of the attacks and distances that a paper reports."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from rbtools import registry, units
from rbtools.attacks import ATTACKS
from rbtools.threats.ball import Ball


@dataclass(frozen=True)
class PresetAttack:
    """An attack in a preset, with its distances in pixel units (or the strengths of another threat) and the
    parameters that are not defaults."""

    attack: str
    eps: tuple[float, ...]
    params: dict[str, Any] = field(default_factory=dict)


def preset(name: str, eps: tuple[float, ...] | None = None) -> tuple[PresetAttack, ...]:
    """The attacks of a preset, at the preset's distances or, in L-infinity, at the distances in `eps`.

    Raises RbError for an unknown name. If a distance in `eps` cannot be reached with the published step size,
    the default step size is used.
    """
    published: tuple[PresetAttack, ...] = registry.preset("attack-presets", name)
    if eps is None:
        return published
    parts = []
    for part in published:
        params = part.params
        if ATTACKS.load(part.attack).within is not Ball or "norm" in params:
            parts.append(part)
            continue
        reach = params["step_size"] * params["steps"] if "step_size" in params else math.inf
        near = tuple(one for one in eps if units.reaches(reach, one))
        far = tuple(one for one in eps if one not in near)
        no_step = {key: value for key, value in params.items() if key != "step_size"}
        parts += [
            PresetAttack(part.attack, some, values)
            for some, values in ((near, params), (far, no_step))
            if some
        ]
    return tuple(parts)
