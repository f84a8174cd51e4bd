"""Saturate: colours become weaker or stronger."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.corruptions.base import Corruption, by_archive
from rbtools.lazy import Tensor
from rbtools.rng.draws import Draws


@dataclass(frozen=True, kw_only=True)
class Saturate(Corruption):
    """Multiplies the HSV saturation by c, adds d, and clips to [0, 1]. The constants are (c, d). This is one
    of the four extra corruptions in the benchmark.

    At constant hue and value V (the maximum over channels), V - x is proportional to the saturation for every
    channel x. Converting to HSV and back therefore only multiplies V - x. Greys have no hue. As in the
    reference, adding d turns grey pixels red. Images without three channels are not changed.
    """

    name = "saturate"
    severities = by_archive(
        cifar=((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
        imagenet=((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
    )

    def corrupt(self, pixels: Tensor, constant: tuple[float, float], draws: Draws) -> Tensor:
        if pixels.shape[1] != 3:
            return pixels
        factor, added = constant
        value = pixels.amax(dim=1, keepdim=True)
        below = value - pixels
        spread = below.amax(dim=1, keepdim=True)
        before = spread / value.where(value > 0, 1)
        after = (before * factor + added).clamp_(0, 1)
        stretch = (after / before.where(before > 0, 1)).where(before > 0, 0)
        result = value - below * stretch
        red = value - value * after
        result[:, 1:] = result[:, 1:].where(spread > 0, red)
        return result
