"""Parses the user's input into values, with distances in pixel units of [0, 1]."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

from rbtools import registry, units
from rbtools.errors import RbError, UsageError


def severities(text: str) -> tuple[int, ...]:
    """Parse severities such as `3`, `1-5` or `1,3,5`. Raises UsageError for invalid severities."""
    numbers = units.number_list(text, "--severity")
    wrong = [value for value in numbers if value not in units.SEVERITIES]
    if wrong:
        raise UsageError(f"--severity is {wrong[0]:g}. Severities are 1, 2, 3, 4 and 5; write 3 or 1-5.")
    return tuple(dict.fromkeys(int(value) for value in numbers))


def build(
    methods: registry.Registry, name: str, params: dict[str, Any], warn: Callable[[str], Any] | None = None
) -> Any:
    """Build a registered method, with distances in pixel units. Parameters that belong to other methods are
    ignored. `warn` is called for each distance whose unit is probably wrong. Raises UsageError."""
    cls = methods.load(name)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    norm = params.get("norm", getattr(cls, "norm", "linf"))
    values = {}
    for key, value in params.items():
        if key not in fields:
            continue
        if fields[key].metadata.get("unit") == "eps" and isinstance(value, str):
            value = distance(value, "--" + key.replace("_", "-"), warn, norm)
        values[key] = value
    try:
        return methods.build(name, **values)
    except RbError as wrong:
        of_method = rf"^([\w-]+) of {methods.kind} '{re.escape(name)}'"
        raise UsageError(
            re.sub(of_method, lambda found: "--" + found[1].replace("_", "-"), str(wrong))
        ) from None


def distances(text: str, norm: str, warn: Callable[[str], Any] | None = None) -> tuple[float, ...]:
    """Parse `--eps` into pixel units of [0, 1]. `warn` is called for each distance whose unit is probably
    wrong. Raises UsageError, also for an ambiguous number (0.031)."""
    pieces = text.split(",")
    pixels: list[float] = []
    for piece in filter(None, (piece.strip() for piece in pieces)):
        values: list[Any] = [piece] if "/" in piece else units.number_list(piece, "--eps")
        pixels += [units.eps_to_pixels(value, norm) for value in values]
        slip = units.eps_slip(piece if len(values) == 1 else max(values), norm)
        if slip and warn:
            warn(f"--eps {piece} {slip}")
    if not pixels:
        raise UsageError("--eps is empty. Expected distances such as 8 or 1,2,8.")
    return tuple(dict.fromkeys(pixels))


def attack(
    attacks: registry.Registry,
    name: str,
    params: dict[str, Any],
    eps: str,
    warn: Callable[[str], Any] | None = None,
) -> tuple[Any, tuple[float, ...]]:
    """The attack, and its distances in pixel units, or its strengths if the threat is not a ball. `warn` is
    called for a distance whose unit is probably wrong, and for steps that are too short."""
    strength = getattr(getattr(attacks.load(name), "within", None), "strength", "eps")
    if strength != "eps":
        return _strengths(attacks, name, params, strength)
    method = build(attacks, name, params, warn)
    if not getattr(method, "in_ball", True):
        method.check_distance()  # the threat lacks a strength
    eps_values = distances(eps, method.norm, warn)
    for value in eps_values if hasattr(method, "grid") else ():
        try:
            dataclasses.replace(method, eps=value).check_distance()
        except RbError as wrong:
            raise UsageError(str(wrong)) from None
    if warn and hasattr(method, "reach"):
        farthest = dataclasses.replace(method, eps=max(eps_values))
        tell_reach(farthest, "--step-size", "--steps", warn)
    return method, eps_values


def _strengths(
    attacks: registry.Registry, name: str, params: dict[str, Any], strength: str
) -> tuple[Any, tuple[float, ...]]:
    option, text = f"--{strength.replace('_', '-')}", params.get(strength)
    method = build(attacks, name, {key: value for key, value in params.items() if key != strength})
    try:
        method.check_distance()
        values = [method.strength] if text is None else units.number_list(text, option)
        methods = {one.threat.in_names: one for one in map(method.at, values)}
    except UsageError:
        raise
    except RbError as wrong:
        raise UsageError(str(wrong).replace(f"{strength} of {type(method).__name__}", option)) from None
    return method, tuple(one.strength for one in methods.values())


def tell_reach(method: Any, step: str, steps: str, warn: Callable[[str], Any]) -> None:
    """Warn if the steps of a method cannot reach the border of its ball; `step` and `steps` are options."""
    if units.reaches(method.reach, method.eps):
        return
    norm = getattr(method, "norm", "linf")
    scale, unit = (255, "/255") if norm == "linf" else (1, "")
    reach, eps = (f"{one * scale:.4g}{unit}" for one in (method.reach, method.eps))
    warn(
        f"--eps is {eps}, but the steps add up to {reach}: the attack cannot reach the border of its"
        f" ball. Increase {step} or {steps}."
    )


def distance(
    text: str | float | None, what: str, warn: Callable[[str], Any] | None = None, norm: str = "linf"
) -> float | None:
    """Parse one distance, such as `--step-size`, into pixel units; None is returned unchanged."""
    if text is None:
        return None
    pixels = units.eps_to_pixels(text, norm, what)
    if (slip := units.eps_slip(text, norm, what)) and warn:
        warn(f"{what} {text} {slip}")
    return pixels


def radii(text: str, largest: float = 1.0) -> tuple[float, ...]:
    """Parse `--gamma` into radii in (0, largest]; a range may begin at 0. Raises UsageError."""
    numbers: list[float] = []
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        curve = piece.count(":") == 2
        one = "/" in piece and not curve
        for value in [units.number(piece, "--gamma")] if one else units.number_list(piece, "--gamma"):
            if (value == 0 and curve) or 0 < value <= largest:
                numbers.append(value)
                continue
            hint = f" Did you mean {value:g}/255?" if largest == 1 < value <= 255 else ""
            scale = "radii are on the [0, 1] scale." if largest == 1 else "a radius must be above 0."
            wanted = "(0, inf)" if largest == math.inf else f"(0, {largest:g}]"
            raise UsageError(f"--gamma {value:g} is not in {wanted}: {scale}{hint}")
    if not numbers:
        raise UsageError("--gamma is empty. Expected radii such as 8/255,0.08,0.1,0.12.")
    return tuple(dict.fromkeys(numbers))


def tolerances(text: str) -> tuple[float, ...]:
    """Parse `--rho` into tolerated failure rates in [0, 1). Raises UsageError."""
    numbers = units.number_list(text, "--rho")
    for value in numbers:
        if not 0 <= value < 1:
            raise UsageError(
                f"--rho is {value:g}. Expected a tolerated failure rate in [0, 1), such as 0.05."
            )
    return tuple(dict.fromkeys(numbers))


def confidence(value: float) -> float:
    """Check that `--confidence` is in [0.5, 1), and return it. Raises UsageError."""
    if not 0.5 <= value < 1:
        hint = f" Did you mean {value / 100:g}?" if 50 <= value < 100 else ""
        raise UsageError(f"--confidence is {value:g}. Expected a number in [0.5, 1), such as 0.95.{hint}")
    return value
