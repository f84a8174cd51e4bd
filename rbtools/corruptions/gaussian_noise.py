"""Gaussian noise: an independent normal number is added to each value."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.corruptions.base import Corruption, by_archive
from rbtools.lazy import Tensor
from rbtools.rng.draws import Draws


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(Corruption):
    """The result is x + N(0, c^2), independently for every pixel and channel, for pixels in [0, 1]."""

    name = "gaussian_noise"
    random = True
    severities = by_archive(cifar=(0.04, 0.06, 0.08, 0.09, 0.10), imagenet=(0.08, 0.12, 0.18, 0.26, 0.38))

    def corrupt(self, pixels: Tensor, constant: float, draws: Draws) -> Tensor:
        return pixels.add_(draws.normal(tuple(pixels.shape[1:])), alpha=constant)
