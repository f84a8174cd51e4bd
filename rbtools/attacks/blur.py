"""Gaussian blur."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks.family_search import FamilySearch
from rbtools.lazy import F, torch
from rbtools.probabilistic.family_noise import FamilyNoise
from rbtools.registry import param
from rbtools.threats.base import Threat
from rbtools.threats.family import Family

if TYPE_CHECKING:
    from torch import Tensor

_TRUNCATED = 4  # standard deviations, as in SciPy's gaussian_filter


@dataclass(frozen=True, kw_only=True)
class Blur(Family):
    """Gaussian blur with a standard deviation of at most `sigma` pixels; a point is this deviation.

    The kernel is truncated at four deviations, and the edge pixels are repeated outside the image.
    """

    name: ClassVar[str] = "blur"
    strength: ClassVar[str] = "sigma"
    bounds: ClassVar[tuple[str, ...]] = ("sigma",)
    one_sided: ClassVar[bool] = True

    sigma: float = 1.0

    @classmethod
    def axis(cls, word: str) -> str:
        return "blur σ [pixels]"

    def transformed(self, points: Tensor, images: Tensor) -> Tensor:
        count = max(len(points), len(images))
        # A convolution with a single group would round differently.
        images = images.expand(max(count, 2) if images.shape[1] == 1 else count, *images.shape[1:])
        reach = int(_TRUNCATED * self.sigma + 0.5)
        places = torch.arange(-reach, reach + 1, device=points.device)
        sigma = points.clamp_min(torch.finfo(points.dtype).tiny)
        kernel = torch.exp(-((places / sigma) ** 2) / 2)
        kernel = torch.where(places.abs() <= (_TRUNCATED * points + 0.5).floor(), kernel, 0)
        kernel = kernel / kernel.sum(1, keepdim=True)
        for shape, pad in (((-1, 1), (0, 0, reach, reach)), ((1, -1), (reach, reach, 0, 0))):
            padded = F.pad(images, pad, mode="replicate").flatten(0, 1)[None]
            weights = kernel.expand(len(images), -1).repeat_interleave(images.shape[1], 0)
            weights = weights.view(len(weights), 1, *(shape if shape[0] == 1 else (-1, 1)))
            images = F.conv2d(padded, weights, groups=len(weights)).view_as(images)
        return images[:count]


@dataclass(frozen=True, kw_only=True)
class BlurAttack(FamilySearch):
    """Gaussian blur with a standard deviation of at most `sigma` pixels.

    By default, `values` evenly spaced deviations are tried, and the result is exact for these. The kernel is
    truncated at four deviations, and the edge pixels are repeated outside the image.

    Shape: images are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,). The result contains the
    deviations (N, 1) in pixels.
    """

    name: ClassVar[str] = "blur"
    words: ClassVar[str] = "Blur"
    within: ClassVar[type[Threat]] = Blur

    sigma: float = param(1.0, "Largest standard deviation, in pixels.", bounds="[0, 100]")
    values: int = param(21, "Number of values in the grid.", check="positive")

    @property
    def counts(self) -> tuple[int, ...]:
        return (self.values,)


@dataclass(frozen=True, kw_only=True)
class BlurNoise(FamilyNoise):
    """Gaussian blur with a standard deviation uniform from 0 to gamma pixels."""

    name: ClassVar[str] = "blur"
    axis: ClassVar[str] = "largest blur σ [pixels]"
    law: ClassVar[str] = "Gaussian blur, sigma~U(0,gamma) pixels, truncated at 4 sigma, edges repeated"
    radii: ClassVar[str] = "0.5,1,2"
    family: ClassVar[type[Family]] = Blur
    largest: ClassVar[float] = 100.0
