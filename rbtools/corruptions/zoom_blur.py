"""Zoom blur: the camera moves towards the scene during the exposure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rbtools.corruptions import imaging
from rbtools.corruptions.base import Corruption, by_archive
from rbtools.lazy import Tensor
from rbtools.rng.draws import Draws


@dataclass(frozen=True, kw_only=True)
class ZoomBlur(Corruption):
    """The mean of the image and of enlarged copies with zoom factors from 1 to `end`.

    The constants are (end, step). The factors are numpy's arange(1, end, step), which for 1.06 and .01 are
    seven values and include the end. Zooming is in steps of whole pixels. On 8x8 images, the lowest severity
    therefore changes nothing.
    """

    name = "zoom_blur"
    severities = by_archive(
        cifar=((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        imagenet=((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    )

    def corrupt_levels(self, levels: Tensor, constant: tuple[float, float], draws: Draws) -> Tensor:
        total, zooms = levels.clone(), factors(*constant)
        for factor in zooms:
            total += imaging.zoomed(levels, factor)
        return total.div_(len(zooms) + 1)


def factors(end: float, step: float) -> list[float]:
    """The exact bits of numpy's arange(1, end, step), because they decide how 26 * 1.25 is rounded."""
    exact = (1 + step) - 1
    return [1 + i * exact for i in range(math.ceil((end - 1) / step))]
