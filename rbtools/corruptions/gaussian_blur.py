"""Gaussian blur."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.corruptions import imaging
from rbtools.corruptions.base import Corruption, by_archive
from rbtools.lazy import Tensor
from rbtools.rng.draws import Draws


@dataclass(frozen=True, kw_only=True)
class GaussianBlur(Corruption):
    """Filters each channel with a Gaussian whose standard deviation is c pixels. This is one of the four
    extra corruptions in the benchmark.

    The kernel extends to 4 c. Beyond the border, the edge pixels are repeated.
    """

    name = "gaussian_blur"
    severities = by_archive(cifar=(0.4, 0.6, 0.7, 0.8, 1), imagenet=(1, 2, 3, 4, 6))

    def corrupt_levels(self, levels: Tensor, constant: float, draws: Draws) -> Tensor:
        return imaging.gaussian_blur(levels.double(), constant).add_(imaging.HAIR)
