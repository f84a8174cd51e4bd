"""Motion blur: the camera moves during the exposure."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.corruptions import imaging
from rbtools.corruptions.base import Corruption, by_archive
from rbtools.lazy import Tensor
from rbtools.rng.draws import Draws


@dataclass(frozen=True, kw_only=True)
class MotionBlur(Corruption):
    """ImageMagick's motion blur at a random angle from -45 to 45 degrees. The constants are (radius, sigma)
    in pixels."""

    name = "motion_blur"
    random = True
    severities = by_archive(
        cifar=((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        imagenet=((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    )

    def corrupt_levels(self, levels: Tensor, constant: tuple[int, float], draws: Draws) -> Tensor:
        angles = draws.uniform(()).double().mul_(90).sub_(45)
        return imaging.motion_blurred(levels, *constant, angles)
