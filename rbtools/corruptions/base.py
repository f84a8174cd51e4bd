"""What all corruptions share: two sets of constants, five severities, 256 grey levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rbtools.errors import RbError
from rbtools.registry import param

if TYPE_CHECKING:
    from torch import Tensor

SEVERITIES = (1, 2, 3, 4, 5)
CIFAR_UP_TO = 64  # pixels a side; larger images take the ImageNet-C constants


class Draws(Protocol):
    """The random numbers of a batch, one independent stream an example."""

    def child(self, name: str) -> Draws:
        """Independent draws for another purpose."""

    def normal(self, shape: tuple[int, ...], draw: int = 0) -> Tensor:
        """Standard normal numbers, float32 (N, *shape)."""


@dataclass(frozen=True, kw_only=True)
class Corruption:
    """Base of the corruptions of CIFAR-10-C and ImageNet-C (Hendrycks and Dietterich, ICLR 2019).

    Follows hendrycks/robustness, `make_cifar_c.py`: uint8 images divided by 255 in float64, the
    corruption, clipping to [0, 1], times 255, truncation (not rounding) to uint8. The truncation
    alone darkens by half a grey level on average; the published numbers contain it. Float64 is
    kept because some results are whole grey levels (brightness .2 adds exactly 51) and the
    truncation then hangs on the last bit.

    Shape:
        images: float32 (N, C, H, W) in [0, 1], any C; rounded to the nearest grey level first.
        result: the same shape and type, every value k / 255.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    random: ClassVar[bool] = False  # whether the draws matter to the result
    severities: ClassVar[Mapping[str, Sequence[Any]]]  # "cifar" and "imagenet": five constants each

    constants: str = param(
        "auto",
        f"Severity constants of CIFAR-10-C or ImageNet-C, or by size (CIFAR up to {CIFAR_UP_TO} pixels).",
        choices=("auto", "cifar", "imagenet"),
    )

    def __call__(self, images: Tensor, severity: int, draws: Draws) -> Tensor:
        """Corrupt a batch. Raises RbError where the severity is not one of 1 to 5."""
        constant = self.constant(severity, images.shape[-2:])
        pixels = images.double().mul_(255).round_().div_(255)
        own = draws.child(f"severity.{severity}") if self.random else draws
        corrupted = self.corrupt(pixels, constant, own)
        return corrupted.clamp_(0, 1).mul_(255).floor_().float().div_(255)

    def constant(self, severity: int, size: Sequence[int]) -> Any:
        """The constant of this severity for images of this (height, width)."""
        if severity not in SEVERITIES:
            raise RbError(f"Severity of {self.name} is {severity}. Choose from: 1, 2, 3, 4, 5.")
        return self.severities[self.constants_for(size)][int(severity) - 1]

    def constants_for(self, size: Sequence[int]) -> str:
        """Which set, "cifar" or "imagenet", images of this (height, width) get."""
        if self.constants != "auto":
            return self.constants
        return "cifar" if max(size) <= CIFAR_UP_TO else "imagenet"

    def corrupt(self, pixels: Tensor, constant: Any, draws: Draws) -> Tensor:
        """Return corrupted float64 pixels, not yet clipped; `pixels` may be overwritten."""
        raise NotImplementedError
