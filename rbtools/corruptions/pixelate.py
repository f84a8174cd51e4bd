"""Pixelate: the image is reduced to a low resolution and enlarged again."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from rbtools.corruptions.base import Corruption, by_archive
from rbtools.lazy import Tensor, torch
from rbtools.rng.draws import Draws


@dataclass(frozen=True, kw_only=True)
class Pixelate(Corruption):
    """Shrinks each side by the factor c with box averages and enlarges it again, like Pillow's BOX filter."""

    name = "pixelate"
    severities = by_archive(cifar=(0.95, 0.9, 0.85, 0.75, 0.65), imagenet=(0.6, 0.5, 0.4, 0.3, 0.25))

    def smallest(self, constant: float) -> int:
        return math.ceil(1 / constant)

    def corrupt_levels(self, levels: Tensor, constant: float, draws: Draws) -> Tensor:
        height, width = levels.shape[2:]
        return resized(resized(levels, (int(height * constant), int(width * constant))), (height, width))


def resized(planes: Tensor, size: tuple[int, int]) -> Tensor:
    """Pillow's BOX resize of grey levels (..., H, W): along rows, then rounding, then along columns.

    The levels are integers up to 255, whose matrix products are exact, even in bfloat16. Unless a mean of up
    to seven levels is a half, it is so far from a half that rounding errors do not matter.
    """
    height, width = planes.shape[-2:]
    across, shares = boxes(width, size[1], str(planes.device))
    planes = _means(planes @ across, shares)
    down, shares = boxes(height, size[0], str(planes.device))
    return _means(down.T @ planes, None if shares is None else shares[:, None])


def _means(sums: Tensor, shares: Tensor | None) -> Tensor:
    return sums if shares is None else sums.mul_(shares).add_(0.5).floor_()


@functools.lru_cache(maxsize=64)
def boxes(source: int, target: int, device: str) -> tuple[Tensor, Tensor | None]:
    """Which pixels of a line belong to each new pixel, float32 (source, target) of 0 and 1; and one divided
    by their numbers (target,), or None if all are 1."""
    scale = source / target
    stretch = max(scale, 1.0)
    centres = (torch.arange(target, dtype=torch.float64) + 0.5) * scale
    first, last = (centres - stretch / 2 + 0.5).floor(), (centres + stretch / 2 + 0.5).floor()
    places = torch.arange(source, dtype=torch.float64)[:, None]
    apart = (places - centres + 0.5) / stretch
    inside = (apart > -0.5) & (apart <= 0.5) & (places >= first) & (places < last)
    counts = inside.sum(0)
    shares = None if bool((counts == 1).all()) else (1 / counts).to(device)
    return inside.float().to(device), shares
