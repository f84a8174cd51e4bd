"""Contrast: the deviation of each channel from its mean over the image is reduced."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.corruptions.base import Corruption, by_archive
from rbtools.lazy import Tensor
from rbtools.rng.draws import Draws


@dataclass(frozen=True, kw_only=True)
class Contrast(Corruption):
    """The result is (x - mean) * c + mean, with the mean of each image and channel. A smaller c is more
    severe."""

    name = "contrast"
    severities = by_archive(cifar=(0.75, 0.5, 0.4, 0.3, 0.15), imagenet=(0.4, 0.3, 0.2, 0.1, 0.05))

    def corrupt(self, pixels: Tensor, constant: float, draws: Draws) -> Tensor:
        # Summed as whole grey levels: exact in any order, so independent of batch and device.
        total = (pixels * 255).round_().sum(dim=(2, 3), keepdim=True)
        means = total / (255 * pixels.shape[2] * pixels.shape[3])
        return pixels.sub_(means).mul_(constant).add_(means)
