"""The base class of all corruptions, with two sets of constants, five severities and 256 grey levels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rbtools import check_input
from rbtools.errors import RbError
from rbtools.lazy import Tensor, torch
from rbtools.registry import Registered, param
from rbtools.rng.draws import Draws, of_images
from rbtools.units import SEVERITIES

CIFAR_UP_TO = 64  # pixels per side; larger images use the ImageNet-C constants
# Values processed at once on a CPU, so that they fit its cache: blurs are up to twice as fast.
CPU_PIECE = 3 << 17


def by_archive(cifar: Sequence[Any], imagenet: Sequence[Any]) -> Mapping[str, Sequence[Any]]:
    return {"cifar": cifar, "imagenet": imagenet}


@dataclass(frozen=True, kw_only=True)
class Corruption(Registered):
    """Base class of the corruptions of CIFAR-10-C and ImageNet-C (Hendrycks and Dietterich, ICLR 2019).

    The steps follow `make_cifar_c.py` in hendrycks/robustness: uint8 images are divided by 255, corrupted,
    clipped to [0, 1], multiplied by 255 and truncated (not rounded) to uint8. The truncation darkens images
    by half a grey level on average, also in the published results. If a corruption can return exact grey
    levels (brightness .2 adds exactly 51), the truncation depends on the last bit. Corruptions that can
    return exact grey levels therefore compute in float64 or in grey levels.

    A subclass defines `corrupt` for float64 pixels in [0, 1], or `corrupt_levels` for grey levels. A
    corruption that reads files (frost) instead overrides `prepared`, which returns one of these functions.

    Shape: images and result are float32 (N, C, H, W) in [0, 1] with any number of channels. Images are first
    rounded to the nearest grey level, and every value in the result is k / 255.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    random: ClassVar[bool] = False  # whether the result depends on the draws
    severities: ClassVar[Mapping[str, Sequence[Any]]]  # "cifar" and "imagenet": five constants each

    constants: str = param(
        "auto",
        f"Constants of CIFAR-10-C or ImageNet-C, or by image size (CIFAR-10-C up to {CIFAR_UP_TO} pixels).",
        choices=("auto", "cifar", "imagenet"),
    )

    def resolved(self) -> Corruption:
        """The corruption with "auto" settings replaced by their values on this machine."""
        return self

    def prepared(self) -> Callable[[Tensor, Any, Draws], Tensor]:
        """Read the necessary files and return the function of grey levels, constant and random numbers.
        Raises RbError if a file is not installed."""
        return self.corrupt_levels

    def __call__(
        self,
        images: Tensor,
        severity: int,
        draws: Draws | None = None,
        *,
        seed: int = 0,
        examples: Tensor | None = None,
    ) -> Tensor:
        """Corrupt images, for example by `Fog()(images, severity=3)`. The images may be on any device and are
        not changed.

        Random numbers depend only on (seed, example) and are the same as in `rb-corrupt --seed`. `examples`
        are the positions of the images in their data set. By default, image i is example i. If `draws` is
        set, `seed` and `examples` are ignored, and the images are not checked.

        Shape: images are floating-point (N, C, H, W) in [0, 1], and examples are int64 (N,). The result is
        float32 (N, C, H, W) on the device of the images, and every value is k / 255.

        Raises RbError for a severity other than 1 to 5, images that are too small or not a tensor of this
        shape and range, examples that are not N integers, a seed outside [0, 2^64), and missing photographs
        of frost.
        """
        if draws is None:
            images = check_input.floats(images)
            draws = of_images(f"corruption.{self.name}", images, seed, examples)
        constant = self.constant(severity, images.shape[-2:])
        self.check_size(severity, images.shape[-2:])
        work, all_draws = self.prepared(), draws.child(f"severity.{severity}") if self.random else draws

        def part(images: Tensor, draws: Draws) -> Tensor:
            corrupted = work(images.mul(255).round_(), constant, draws)
            # Truncated as by a conversion to uint8, which takes longer and has no negative zero.
            return corrupted.clamp_(0, 255).floor_().float().abs_().div_(255)

        size = max(1, CPU_PIECE // max(images[:1].numel(), 1))
        if images.device.type != "cpu" or len(images) <= size:
            return part(images, all_draws)
        positions = torch.arange(len(images)).split(size)
        return torch.cat(
            [part(images[rows], all_draws.take(rows) if self.random else all_draws) for rows in positions]
        )

    def constant(self, severity: int, size: Sequence[int]) -> Any:
        """The constant for a severity and for images (height, width). Raises RbError for other severities."""
        if severity not in SEVERITIES:
            raise RbError(f"The severity of {self.name} is {severity}. Choose from: 1, 2, 3, 4, 5.")
        return self.severities[self.constants_for(size)][int(severity) - 1]

    def constants_for(self, size: Sequence[int]) -> str:
        """The name of the constants, "cifar" or "imagenet", for images of this (height, width)."""
        if self.constants != "auto":
            return self.constants
        return "cifar" if max(size) <= CIFAR_UP_TO else "imagenet"

    def smallest(self, constant: Any) -> int:
        """The smallest height and width, in pixels, for which this constant is meaningful."""
        return 1

    def check_size(self, severity: int, size: Sequence[int]) -> None:
        """Raise RbError if images of this (height, width) are too small."""
        least = self.smallest(self.constant(severity, size))
        if min(size) < least:
            raise RbError(
                f"Images of {size[0]}x{size[1]} pixels are too small for {self.name} at severity {severity},"
                f" which needs {least} pixels per side. Leave it out, or use larger images."
            )

    def corrupt_levels(self, levels: Tensor, constant: Any, draws: Draws) -> Tensor:
        """Returns grey levels before clipping and truncation. `levels` (float32) may be overwritten."""
        return self.corrupt(levels.double().div_(255), constant, draws).mul_(255)

    def corrupt(self, pixels: Tensor, constant: Any, draws: Draws) -> Tensor:
        """Returns corrupted float64 pixels that are not yet clipped. `pixels` may be overwritten."""
        raise NotImplementedError
