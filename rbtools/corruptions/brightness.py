"""Brightness: the HSV value is increased; hue and saturation do not change."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.corruptions.base import Corruption, by_archive
from rbtools.lazy import Tensor
from rbtools.rng.draws import Draws


@dataclass(frozen=True, kw_only=True)
class Brightness(Corruption):
    """Adds c to the HSV value V, the maximum over channels, and clips the sum to [0, 1].

    At constant hue and saturation, every channel is proportional to V. Converting to HSV and back therefore
    multiplies every channel by V' / V. A black pixel has no hue and becomes grey. For one-channel images, the
    value is the pixel itself, so the result is x + c.
    """

    name = "brightness"
    severities = by_archive(cifar=(0.05, 0.1, 0.15, 0.2, 0.3), imagenet=(0.1, 0.2, 0.3, 0.4, 0.5))

    def corrupt(self, pixels: Tensor, constant: float, draws: Draws) -> Tensor:
        value = pixels.amax(dim=1, keepdim=True)
        brighter = (value + constant).clamp_(max=1)
        # The largest channel is set, not scaled: x * (V' / V) could miss V' by the last bit.
        return (pixels * (brighter / value)).where(pixels < value, brighter)
