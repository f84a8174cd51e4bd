"""Motion blur: the camera moves during the exposure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.corruptions import imaging
from rbtools.corruptions.base import Corruption, Draws

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class MotionBlur(Corruption):
    """ImageMagick's motion blur at an angle from -45 to 45 degrees; constants (radius, sigma) in pixels."""

    name: ClassVar[str] = "motion_blur"
    random: ClassVar[bool] = True
    severities: ClassVar[dict[str, tuple[tuple[int, float], ...]]] = {
        "cifar": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        "imagenet": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    }

    def corrupt_levels(self, levels: Tensor, constant: tuple[int, float], draws: Draws) -> Tensor:
        angles = draws.uniform(()).double().mul_(90).sub_(45)
        return imaging.motion_blurred(levels, *constant, angles)
