"""Zoom about the centre of the image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.attacks.family_search import FamilySearch
from rbtools.lazy import torch
from rbtools.probabilistic.family_noise import FamilyNoise
from rbtools.registry import param
from rbtools.threats.base import Threat
from rbtools.threats.family import Family, warped

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Zoom(Family):
    """Magnification by factors from 1 - `share` to 1 + `share`; a point is the factor minus 1. Pixels are
    interpolated bilinearly, and areas outside the original image are black."""

    name: ClassVar[str] = "zoom"
    strength: ClassVar[str] = "share"
    bounds: ClassVar[tuple[str, ...]] = ("share",)

    share: float = 0.2

    @classmethod
    def axis(cls, word: str) -> str:
        return "zoom"

    def transformed(self, points: Tensor, images: Tensor) -> Tensor:
        share = 1 / (1 + points[:, 0])
        none = torch.zeros_like(share)
        return warped(images, torch.stack([share, none, none, none, share, none], 1).view(-1, 2, 3))


@dataclass(frozen=True, kw_only=True)
class ZoomAttack(FamilySearch):
    """Magnification by factors from 1 - `share` to 1 + `share` about the centre.

    By default, `values` evenly spaced factors are tried, and the result is exact for these. Pixels are
    interpolated bilinearly, and areas outside the original image are black.

    Shape: images are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,). The result contains the
    factors minus 1 (N, 1).
    """

    name: ClassVar[str] = "zoom"
    words: ClassVar[str] = "Zoom"
    within: ClassVar[type[Threat]] = Zoom

    share: float = param(0.2, "Largest change of the factor in each direction.", bounds="[0, 1)")
    values: int = param(21, "Number of values in the grid.", check="positive")

    @property
    def counts(self) -> tuple[int, ...]:
        return (self.values,)

    def said(self) -> dict[str, Any]:
        return {**super().said(), "interpolation": "bilinear", "padding": "black"}


@dataclass(frozen=True, kw_only=True)
class Affine(Family):
    """Affine maps: the four numbers of the matrix change by at most `amount`, and the centre moves by at most
    this share of half a side. A point is (xx, xy, yx, yy, right, down) as shares. Pixels are interpolated
    bilinearly, and areas outside the original image are black."""

    name: ClassVar[str] = "affine"
    strength: ClassVar[str] = "amount"
    bounds: ClassVar[tuple[str, ...]] = ("amount",) * 6

    amount: float = 0.1

    def transformed(self, points: Tensor, images: Tensor) -> Tensor:
        height, width = images.shape[2:]
        moved = torch.stack([points[:, 4] * (width / 2), points[:, 5] * (height / 2)], 1)[..., None]
        matrix = torch.eye(2, device=points.device) + points[:, :4].view(-1, 2, 2)
        return warped(images, torch.cat([matrix, -moved], 2))


@dataclass(frozen=True, kw_only=True)
class AffineNoise(FamilyNoise):
    """Random affine maps: the four numbers of the matrix change, and the centre moves by shares of half a
    side, uniformly from -gamma to gamma. Pixels are interpolated bilinearly; areas outside are black."""

    name: ClassVar[str] = "affine"
    axis: ClassVar[str] = "largest change of the affine map"
    law: ClassVar[str] = "affine map [I+U(-gamma,gamma)^(2x2) | U(-gamma,gamma)^2], bilinear, black outside"
    radii: ClassVar[str] = "0.05,0.1,0.2"
    largest: ClassVar[float] = 1.0
    family: ClassVar[type[Family]] = Affine
