"""Changes of hue, saturation, brightness and contrast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.attacks.family_search import FamilySearch
from rbtools.errors import RbError
from rbtools.lazy import torch
from rbtools.probabilistic.family_noise import FamilyNoise
from rbtools.registry import param
from rbtools.threats.base import Threat
from rbtools.threats.family import Family

if TYPE_CHECKING:
    from torch import Tensor

QUANTITIES = ("brightness", "contrast", "saturation", "hue")  # in the order in which they are changed
_GREY = (0.2989, 0.587, 0.114)  # ITU-R BT.601 as torchvision rounds it


def _what() -> Any:
    return param("hue", "The quantity to change, or all four.", choices=(*QUANTITIES, "all"))


@dataclass(frozen=True, kw_only=True)
class Color(Family):
    """Changes of one quantity, or of all four, by at most `amount`, as in torchvision's ColorJitter.

    A point is (brightness, contrast, saturation, hue), changed in this order: pixels are multiplied by 1 +
    brightness; moved away from the mean grey of the image by 1 + contrast; moved away from their grey by 1 +
    saturation; and their hue is turned by this share of the circle. Images have three channels, or one
    channel without hue and saturation.
    """

    name: ClassVar[str] = "color"
    strength: ClassVar[str] = "amount"
    bounds: ClassVar[tuple[str, ...]] = ("amount",) * len(QUANTITIES)

    what: str = _what()
    amount: float = 0.1

    @property
    def most(self) -> tuple[float, ...]:
        return tuple(self.amount if self.what in (name, "all") else 0.0 for name in QUANTITIES)

    @classmethod
    def axis(cls, word: str) -> str:
        return "change of colour"

    @classmethod
    def said(cls, word: str, values: Mapping[str, str]) -> str:
        signs = {"what": "{}", "amount": "±{}"}
        return ", ".join(signs[name].format(value) for name, value in values.items())

    def transformed(self, points: Tensor, images: Tensor) -> Tensor:
        channels = images.shape[1]
        if channels not in (1, 3) or (channels == 1 and self.what in ("hue", "saturation")):
            raise RbError(
                f"The threat color ({self.what}) needs images with 3 channels, or with 1 channel except for"
                f" hue and saturation, but these have {channels}. Choose another quantity or attack."
            )
        brightness, contrast, saturation, hue = points.view(-1, 4, 1, 1, 1).unbind(1)
        images = (images * (1 + brightness)).clamp(0, 1)
        mean = _grey(images).mean((1, 2, 3), keepdim=True)
        images = (mean + (1 + contrast) * (images - mean)).clamp(0, 1)
        if channels == 1:
            return images
        grey = _grey(images)
        images = (grey + (1 + saturation) * (images - grey)).clamp(0, 1)
        return _turned(images, hue[:, 0])


def _grey(images: Tensor) -> Tensor:
    """The perceived brightness (N, 1, H, W)."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.split(1, 1)
    grey: Tensor = red * _GREY[0] + green * _GREY[1] + blue * _GREY[2]
    return grey


def _turned(images: Tensor, hue: Tensor) -> Tensor:
    """Turn the hue, in HSV, of images (N, 3, H, W) by shares of the circle (N, 1, 1) or (1, 1, 1)."""
    value, least = images.amax(1), images.amin(1)
    spread = value - least
    red, green, blue = images.unbind(1)
    safe = torch.where(spread > 0, spread, 1)
    sixths = torch.where(value == blue, 4 + (red - green) / safe, 0)
    sixths = torch.where(value == green, 2 + (blue - red) / safe, sixths)
    sixths = torch.where(value == red, (green - blue) / safe, sixths)
    turned = sixths + 6 * hue
    # In HSV, a channel is V - spread * clip(min(k, 4 - k), 0, 1), with k = (n + h) mod 6, n = 5, 3, 1.
    channels = []
    for number in (5, 3, 1):
        k = (turned + number).remainder(6)
        channels.append(value - spread * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.stack(channels, 1)


@dataclass(frozen=True, kw_only=True)
class ColorAttack(FamilySearch):
    """Changes of hue, saturation, brightness or contrast, or of all four.

    By default, all points of a grid are tried: `values` evenly spaced changes of the quantity, or 5 of each
    quantity with `what="all"`, and the result is exact for these points. With `mode="random"`, the result is
    the worst of `samples` random points, and with "gradient" the attack follows the gradient of the margin.
    The changes are the same as in torchvision's ColorJitter. For hue, `amount` is a share of the circle.

    Shape: images are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,). The result contains the
    points (N, 4): brightness, contrast, saturation and hue.
    """

    name: ClassVar[str] = "color"
    words: ClassVar[str] = "Colour"
    within: ClassVar[type[Threat]] = Color
    derived: ClassVar[frozenset[str]] = frozenset({"values"})

    what: str = _what()
    amount: float = param(0.1, "Largest change in each direction.", bounds="[0, 1]")
    values: int | None = param(
        None,
        "Number of values in the grid.  [default: 21; 5 for each quantity with --what all]",
        check="positive",
    )

    def __post_init__(self) -> None:
        if self.values is None:
            object.__setattr__(self, "values", 5 if self.what == "all" else 21)
        if self.what in ("hue", "all") and self.amount > 0.5:
            raise RbError(
                f"amount is {self.amount:g}. Expected at most 0.5 for hue, which is half the circle."
            )

    @property
    def counts(self) -> tuple[int, ...]:
        assert self.values is not None
        return (self.values,) * len(QUANTITIES)


@dataclass(frozen=True, kw_only=True)
class _ColorNoise(FamilyNoise):
    family: ClassVar[type[Family]] = Color
    radii: ClassVar[str] = "0.1,0.2,0.4"
    largest: ClassVar[float] = 1.0

    def fields(self, gamma: float) -> dict[str, Any]:
        return {"what": self.name, "amount": gamma}


@dataclass(frozen=True, kw_only=True)
class BrightnessNoise(_ColorNoise):
    """Pixels are multiplied by 1 + u, with u uniform from -gamma to gamma, as in torchvision's
    ColorJitter."""

    name: ClassVar[str] = "brightness"
    axis: ClassVar[str] = "largest change of brightness"
    law: ClassVar[str] = "the model sees clip((1+u)x,0,1), u~U(-gamma,gamma)"


@dataclass(frozen=True, kw_only=True)
class ContrastNoise(_ColorNoise):
    """Pixels move away from the image's mean grey by the factor 1 + u, with u uniform from -gamma to gamma,
    as in torchvision's ColorJitter."""

    name: ClassVar[str] = "contrast"
    axis: ClassVar[str] = "largest change of contrast"
    law: ClassVar[str] = "the model sees clip(m+(1+u)(x-m),0,1), m the mean grey, u~U(-gamma,gamma)"


@dataclass(frozen=True, kw_only=True)
class HueNoise(_ColorNoise):
    """The hue in HSV is turned by u circles, with u uniform from -gamma to gamma, as in torchvision's
    ColorJitter."""

    name: ClassVar[str] = "hue"
    axis: ClassVar[str] = "largest change of hue [circles]"
    law: ClassVar[str] = "hue turned by U(-gamma,gamma) circles in HSV"
    radii: ClassVar[str] = "0.05,0.1,0.2"
    largest: ClassVar[float] = 0.5
