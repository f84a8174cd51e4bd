"""The local optimality of an attack (AttackBench), computed from a record's accuracies over distances."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rbtools.errors import RbError, near
from rbtools.records import metric_name

Over = dict[float, float]  # distance -> accuracy


def optimality(record: Mapping[str, Any], attack: object) -> float:
    """How close an attack's curve of accuracy over eps is to the lower envelope of all attacks; 1 is best.

    The value is 1 - (a - b) / (c - b), where a is the area under the attack's curve, b is the area under the
    lower envelope of all curves in the same norm, and c is clean accuracy times the largest distance (Cina et
    al. 2024, AttackBench, arXiv:2404.19460). An attack that finds no adversarial example has the value 0. The
    curves end at the distance where the envelope reaches 0, or else at the largest distance that all curves
    contain. If attacks break different images, the envelope is above the accuracy against all attacks
    together, which `rb-attack curve --attacks` measures.

    `attack` is the metric's name without the distance, such as "pgd20" or "fmn.l2". Raises RbError if the
    record lacks the accuracies of this attack, of a second attack, or on clean images.
    """
    curves, name = _curves(record), str(attack)
    if name not in curves:
        raise RbError(
            "optimality() takes an attack with accuracies at several distances, such as 'pgd20';"
            f" '{name}' is not one.{near(name, curves)} Known curves: {', '.join(curves) or 'none'}."
        )
    attacked = curves[name]
    compared = [curve.over for curve in curves.values() if curve.images == attacked.images]
    if len(compared) < 2:
        raise RbError(
            f"optimality('{name}') compares attacks, but the record has no other attack with two distances or"
            " more in this norm on the same images."
        )
    clean = (record.get("metrics") or {}).get(metric_name.split_name("acc", attacked.images[1]))
    if not isinstance(clean, int | float) or clean <= 0:
        raise RbError(f"optimality('{name}') needs a clean accuracy above 0.")
    return _optimality({0.0: float(clean), **attacked.over}, [{0.0: float(clean), **one} for one in compared])


class _Curve(NamedTuple):
    """A curve of accuracy over distance. Compared curves have equal `images`: norm, split, data set and n."""

    images: tuple[str, str, Any, Any]
    over: Over


def _curves(record: Mapping[str, Any]) -> dict[str, _Curve]:
    """The curves of all attacks (keys with split and norm) that have at least two distances above 0."""
    curves: dict[str, _Curve] = {}
    for entry in record.get("evals") or ():
        parts = metric_name.parse(str(entry.get("metric")))
        eps, value = entry.get(parts.over), entry.get("value")
        plain = parts.attacked and parts.prefixes in ((), (parts.split,)) and "attack" in entry
        if plain and isinstance(eps, int | float) and isinstance(value, int | float) and eps > 0:
            images = parts.norm, parts.split, entry.get("dataset"), entry.get("n")
            curve = curves.setdefault(parts.family, _Curve(images, {}))
            if curve.images == images:
                curve.over[float(eps)] = float(value)
    return {name: curve for name, curve in curves.items() if len(curve.over) > 1}


def _optimality(asked: Over, compared: Sequence[Over]) -> float:
    end = min(max(curve) for curve in compared)
    grid = sorted({eps for curve in compared for eps in curve if eps <= end})
    lowest = [min(_interpolated(curve, eps) for curve in compared) for eps in grid]
    if 0.0 in lowest:
        grid, lowest = grid[: lowest.index(0.0) + 1], lowest[: lowest.index(0.0) + 1]
    area, least = _area(grid, [_interpolated(asked, eps) for eps in grid]), _area(grid, lowest)
    most = asked[0.0] * grid[-1]
    if most <= least:
        raise RbError("Local optimality is not defined: no attack breaks an image up to that distance.")
    return 1 - (area - least) / (most - least)


def _interpolated(curve: Over, eps: float) -> float:
    if eps in curve:
        return curve[eps]
    below, above = max(one for one in curve if one < eps), min(one for one in curve if one > eps)
    share = (eps - below) / (above - below)
    return curve[below] + share * (curve[above] - curve[below])


def _area(grid: Sequence[float], values: Sequence[float]) -> float:
    steps = zip(itertools.pairwise(grid), itertools.pairwise(values), strict=True)
    return math.fsum((right - left) * (low + high) / 2 for (left, right), (low, high) in steps)
