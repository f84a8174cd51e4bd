"""Pixelate: the image is reduced to a low resolution and enlarged again."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from rbtools.corruptions.base import Corruption, by_archive
from rbtools.lazy import Tensor, torch
from rbtools.rng.draws import Draws

FIXED = 1 << 22  # Pillow's weights for 8 bits are whole numbers divided by this


@dataclass(frozen=True, kw_only=True)
class Pixelate(Corruption):
    """Shrinks each side by the factor c with box averages and enlarges it again, like Pillow's BOX filter."""

    name = "pixelate"
    severities = by_archive(cifar=(0.95, 0.9, 0.85, 0.75, 0.65), imagenet=(0.6, 0.5, 0.4, 0.3, 0.25))

    def smallest(self, constant: float) -> int:
        return math.ceil(1 / constant)

    def corrupt_levels(self, levels: Tensor, constant: float, draws: Draws) -> Tensor:
        height, width = levels.shape[2:]
        small = int(height * constant), int(width * constant)
        down, across = (
            there_and_back(*sides, str(levels.device)) for sides in zip((height, width), small, strict=True)
        )
        if down is None or across is None:
            return resized(resized(levels.double(), small), (height, width))
        planes = (levels.double() @ across.T).add_(0.5).floor_()
        return (down @ planes).add_(0.5).floor_()


def resized(planes: Tensor, size: tuple[int, int]) -> Tensor:
    """Pillow's BOX resize of float64 grey levels (..., H, W): along rows, then rounding, then along columns.
    The sums of integers are below 2^53, so they are exact in any order."""
    height, width = planes.shape[-2:]
    if width != size[1]:
        planes = (planes @ box_weights(width, size[1], str(planes.device)).T).add_(0.5).floor_()
    if height != size[0]:
        planes = (box_weights(height, size[0], str(planes.device)) @ planes).add_(0.5).floor_()
    return planes


@functools.lru_cache(maxsize=64)
def there_and_back(side: int, small: int, device: str) -> Tensor | None:
    """Weights (side, side) that shrink a line and enlarge it again with a single rounding, or None if an
    enlarged pixel is the mean of two pixels."""
    back = box_weights(small, side, device)
    if not bool(((back == 0) | (back == 1)).all()):
        return None
    return back @ box_weights(side, small, device)


@functools.lru_cache(maxsize=64)
def box_weights(source: int, target: int, device: str) -> Tensor:
    """The resize weights, float64 (target, source): integers divided by FIXED, whose sum is about 1."""
    scale = source / target
    stretch = max(scale, 1.0)
    weights = torch.zeros(target, source, dtype=torch.float64)
    for i in range(target):
        centre = (i + 0.5) * scale
        first = max(int(centre - stretch / 2 + 0.5), 0)
        last = min(int(centre + stretch / 2 + 0.5), source)
        inside = [-0.5 < (j - centre + 0.5) / stretch <= 0.5 for j in range(first, last)]
        share = 1 / max(sum(inside), 1)
        for j, taken in zip(range(first, last), inside, strict=True):
            weights[i, j] = math.floor(0.5 + taken * share * FIXED) / FIXED
    return weights.to(device)
