"""What a search tells of itself besides its outcomes: in words, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Above this share of examples without a gradient, robustness may be an illusion.
_BLIND = 0.01
# A share of all examples that Square may find beyond the attacks by gradients without a word.
_SQUARE = 0.002


def of_attack(method: Any, totals: Mapping[str, float], n: int) -> dict[str, Any]:
    """What an entry says besides its value.

    `loss`, the one in use; `broken_by`, for an attack of parts: how many of n examples each broke;
    `distance`, for one that looks for the nearest: the mean over what it fooled; and `warnings`.
    """
    found: dict[str, Any] = {}
    by = _broken_by(method, totals)
    if by:
        found["broken_by"] = by
    losses = [name.partition(".")[2] for name in totals if name.startswith("loss.")]
    if losses:
        found["loss"] = losses[0]
    count = totals.get("distances", 0.0)
    if count:
        found["distance"] = {"mean": round(totals["distance"] / count, 6), "n": int(count)}
    warnings = [*_other_loss(method, losses), *_vanishing(totals), *_square(by, n)]
    return {**found, **({"warnings": warnings} if warnings else {})}


def _other_loss(method: Any, losses: list[str]) -> list[str]:
    named = method.loss
    if not losses or losses[0] == named:
        return []
    return [f"The model has too few classes for the loss {named}: {losses[0]} stands in for it."]


def _vanishing(totals: Mapping[str, float]) -> list[str]:
    started, blind = totals.get("started", 0.0), totals.get("zero_gradient", 0.0)
    if not started or blind / started <= _BLIND:
        return []
    return [
        f"The gradient is zero at the start for {blind / started:.1%} of the images attacked: what looks"
        " robust there may only be saturated. Compare with square and apgd-dlr."
    ]


def _broken_by(method: Any, totals: Mapping[str, float]) -> dict[str, int]:
    counts = {name: value for name, value in totals.items() if name.startswith("broken_by.")}
    if not counts:
        return {}
    names = [part.name for part in method.parts]
    by: dict[str, int] = dict.fromkeys(names, 0)
    for name, value in counts.items():
        number = int(name.partition(".")[2])
        if number >= 0:
            by[names[number]] += int(value)
    return by


def _square(by: Mapping[str, int], n: int) -> list[str]:
    found = by.get("square", 0)
    if found <= _SQUARE * n:
        return []
    return [
        f"Square broke {found} of {n} images that no attack by gradients broke: the model's gradients may be"
        " masked. Check with rb-attack check."
    ]
