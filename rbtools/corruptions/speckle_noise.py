"""Speckle noise: Gaussian noise that is larger where the image is brighter."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.corruptions.base import Corruption, by_archive
from rbtools.lazy import Tensor
from rbtools.rng.draws import Draws


@dataclass(frozen=True, kw_only=True)
class SpeckleNoise(Corruption):
    """The result is x + x * N(0, c^2), independently for every value. This is one of the four extra
    corruptions in the benchmark."""

    name = "speckle_noise"
    random = True
    severities = by_archive(cifar=(0.06, 0.1, 0.12, 0.16, 0.2), imagenet=(0.15, 0.2, 0.35, 0.45, 0.6))

    def corrupt(self, pixels: Tensor, constant: float, draws: Draws) -> Tensor:
        noise = draws.normal(tuple(pixels.shape[1:])).double()
        return pixels.addcmul_(pixels, noise, value=constant)
