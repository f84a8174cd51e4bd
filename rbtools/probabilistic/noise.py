"""Noise around an image, as a unit draw times a radius.

The unit draw does not depend on the radius, so that all radii share it: estimates over a range of
radii are smooth, and a further radius costs one multiply-add. A registered noise has
`unit(draws, shape, draw)` and
`apply(images, unit, gamma)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from rbtools.registry import param

if TYPE_CHECKING:
    from torch import Tensor


class Draws(Protocol):
    """The random numbers of a batch, one independent stream an example."""

    def uniform(self, shape: tuple[int, ...], draw: int = 0) -> Tensor:
        """Numbers from [0, 1) on the grid of 2^-24, float32 (N, *shape)."""


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """Independent U(-gamma, gamma) on every pixel and channel: uniform in the L-infinity ball.

    PRBench section 3 and advbench sample like this. advbench clips x + delta to [0, 1] in training and in
    evaluation, PRBench does not say; without clipping a model sees pixels that no image has.
    """

    name: ClassVar[str] = "uniform"
    version: ClassVar[int] = 1

    clip: bool = param(True, "Clip the noisy image to [0, 1].")

    def unit(self, draws: Draws, shape: tuple[int, ...], draw: int) -> Tensor:
        """The draw-th draw of each example at radius 1: float32 (N, *shape), within (-1, 1).

        The 2^24 values are the odd multiples of 2^-24, exact in float32: symmetric about 0, which
        [0, 1) times 2 minus 1 is not.
        """
        return draws.uniform(shape, draw=draw).mul_(2).sub_(1 - 2.0**-24)

    def apply(self, images: Tensor, unit: Tensor, gamma: float) -> Tensor:
        """Noisy images at radius `gamma` (pixel units of [0, 1]), of the shape of `images`."""
        noisy = images.add(unit, alpha=gamma)
        return noisy.clamp_(0, 1) if self.clip else noisy
