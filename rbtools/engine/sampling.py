"""Noisy copies of examples, counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rbtools.engine.tiles import Tile


def counts(tile: Tile, noise: Any, gammas: Sequence[float], samples: int) -> list[Tensor]:
    """For each radius, how many of `samples` noisy copies of each example are classified right.

    Returns int64 tensors (N,), -1 for an example that is misclassified without noise. One unit
    draw serves all radii, scaled: curves over the radius are smooth, and the draws cost once.
    """
    found = [torch.full_like(tile.labels, -1) for _ in gammas]
    if not gammas or not tile.clean.any():
        return found
    standing = tile.take(tile.clean)
    draws = standing.draws(f"noise.{noise.name}")
    right = [torch.zeros_like(standing.labels) for _ in gammas]
    for sample in range(samples):
        unit = noise.unit(draws, tuple(tile.images.shape[1:]), sample)
        for total, gamma in zip(right, gammas, strict=True):
            total += standing.correct(noise.apply(standing.images, unit, gamma))
    for column, total in zip(found, right, strict=True):
        column[tile.clean] = total
    return found
