"""Gaussian blur."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.corruptions import imaging
from rbtools.corruptions.base import Corruption, Draws

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class GaussianBlur(Corruption):
    """Filter each channel with a Gaussian of c pixels. One of the four extra corruptions.

    The kernel ends at 4 c; beyond the border the edge pixels are repeated.
    """

    name: ClassVar[str] = "gaussian_blur"
    severities: ClassVar[dict[str, tuple[float, ...]]] = {
        "cifar": (0.4, 0.6, 0.7, 0.8, 1),
        "imagenet": (1, 2, 3, 4, 6),
    }

    def corrupt_levels(self, levels: Tensor, constant: float, draws: Draws) -> Tensor:
        return imaging.gaussian_blur(levels.double(), constant).add_(imaging.HAIR)
