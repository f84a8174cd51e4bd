"""Fog: fractal noise is added to a dimmed image."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.corruptions.base import Corruption, by_archive
from rbtools.lazy import Tensor, torch
from rbtools.rng.draws import Draws


@dataclass(frozen=True, kw_only=True)
class Fog(Corruption):
    """The result is x + c * plasma, scaled to the maximum of x. The constants are (c, decay of the plasma).

    The plasma is a corner of a map whose side is 32 pixels, or the next power of two for larger images.
    """

    name = "fog"
    random = True
    severities = by_archive(
        cifar=((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        imagenet=((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    )

    def corrupt(self, pixels: Tensor, constant: tuple[float, float], draws: Draws) -> Tensor:
        amount, decay = constant
        height, width = pixels.shape[2:]
        size = max(32, 1 << (max(height, width) - 1).bit_length())
        highest = pixels.amax(dim=(1, 2, 3), keepdim=True)
        cloud = plasma(draws, size, decay)[:, None, :height, :width]
        return pixels.add_(cloud, alpha=amount).mul_(highest / (highest + amount))


def plasma(draws: Draws, size: int, decay: float) -> Tensor:
    """Random height maps by the diamond-square algorithm on a torus: float64 (N, size, size), from 0 to 1.
    `size` is a power of two.

    Each new point is the mean of the four points around it, plus a uniform random number. From one scale to
    the next, the range of the random number is divided by the square of `decay`, as in the reference.
    """
    chance = draws.uniform((size, size)).double().mul_(2).sub_(1)
    land = torch.zeros_like(chance)
    step, spread = size, 100.0**2
    while step >= 2:
        half = step // 2
        corners = land[:, ::step, ::step]
        squares = _pairs(_pairs(corners, 1, -1), 2, -1)
        middles = squares / 4 + spread * chance[:, half::step, half::step]
        land[:, half::step, half::step] = middles
        above = _pairs(middles, 1, 1) + _pairs(corners, 2, -1)
        beside = _pairs(middles, 2, 1) + _pairs(corners, 1, -1)
        land[:, ::step, half::step] = above / 4 + spread * chance[:, ::step, half::step]
        land[:, half::step, ::step] = beside / 4 + spread * chance[:, half::step, ::step]
        step, spread = half, spread / decay**2
    land -= land.amin(dim=(1, 2), keepdim=True)
    return land / land.amax(dim=(1, 2), keepdim=True)


def _pairs(points: Tensor, dim: int, shift: int) -> Tensor:
    """Each point plus its neighbour along an axis, with the ends of the axis connected."""
    return points + points.roll(shift, dim)
