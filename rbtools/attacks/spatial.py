"""Rotations and translations."""

from __future__ import annotations

from collections.abc import Mapping
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
class Spatial(Family):
    """Rotations about the centre by at most `degrees`, followed by translations by at most `pixels`.

    A point is (degrees anticlockwise, pixels down, pixels right). Pixels are interpolated bilinearly, and
    areas outside the original image are black (Engstrom et al. 2019, arXiv:1712.02779).
    """

    name: ClassVar[str] = "spatial"
    strength: ClassVar[str] = "degrees"
    bounds: ClassVar[tuple[str, ...]] = ("degrees", "pixels", "pixels")

    degrees: float = 30.0
    pixels: float = 3.0

    @classmethod
    def axis(cls, word: str) -> str:
        return "rotation [degrees]"

    @classmethod
    def said(cls, word: str, values: Mapping[str, str]) -> str:
        signs = {"degrees": "±{}°", "pixels": "±{} pixels"}
        return ", ".join(signs[name].format(value) for name, value in values.items())

    def transformed(self, points: Tensor, images: Tensor) -> Tensor:
        degrees, down, right = points.unbind(1)
        sine, cosine = torch.deg2rad(degrees).sin(), torch.deg2rad(degrees).cos()
        x, y = -cosine * right + sine * down, -sine * right - cosine * down
        rows = [cosine, -sine, x, sine, cosine, y]
        return warped(images, torch.stack(rows, 1).view(-1, 2, 3))


@dataclass(frozen=True, kw_only=True)
class SpatialAttack(FamilySearch):
    """Rotations about the centre and translations (Engstrom et al. 2019, arXiv:1712.02779).

    By default, all points of the paper's grid are tried (`angles=31` times `shifts=5` times 5), and the
    result is exact for these points. With `mode="random"`, the result is the worst of `samples` random
    points, and with "gradient" the attack follows the gradient of the margin. The images are interpolated
    bilinearly, and areas outside the original image are black.

    Shape: images are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,). The result contains the
    points (N, 3): degrees anticlockwise, pixels down and pixels right.
    """

    name: ClassVar[str] = "spatial"
    words: ClassVar[str] = "Spatial"
    within: ClassVar[type[Threat]] = Spatial

    degrees: float = param(30.0, "Largest rotation in each direction, in degrees.", bounds="[0, 180]")
    pixels: float = param(3.0, "Largest translation in each direction, in pixels.", check="non-negative")
    angles: int = param(31, "Number of rotations in the grid.", check="positive")
    shifts: int = param(5, "Number of translations in the grid, in each direction.", check="positive")

    @property
    def counts(self) -> tuple[int, ...]:
        return (self.angles, self.shifts, self.shifts)

    def said(self) -> dict[str, Any]:
        return {**super().said(), "interpolation": "bilinear", "padding": "black"}


@dataclass(frozen=True, kw_only=True)
class Rotation(FamilyNoise):
    """Rotation about the centre by a uniform angle from -gamma to gamma degrees. Pixels are interpolated
    bilinearly, and areas outside the original image are black."""

    name: ClassVar[str] = "rotation"
    axis: ClassVar[str] = "largest rotation [degrees]"
    law: ClassVar[str] = "rotation by U(-gamma,gamma) degrees, bilinear, black outside"
    family: ClassVar[type[Family]] = Spatial
    largest: ClassVar[float] = 180.0
    radii: ClassVar[str] = "5,10,20,30"

    def fields(self, gamma: float) -> dict[str, Any]:
        return {"degrees": gamma, "pixels": 0.0}


@dataclass(frozen=True, kw_only=True)
class Translation(FamilyNoise):
    """Translation by uniform numbers of pixels from -gamma to gamma, down and to the right. Pixels are
    interpolated bilinearly, and areas outside the original image are black."""

    name: ClassVar[str] = "translation"
    axis: ClassVar[str] = "largest translation [pixels]"
    law: ClassVar[str] = "translation by U(-gamma,gamma) pixels down and right, bilinear, black outside"
    radii: ClassVar[str] = "1,2,3"
    family: ClassVar[type[Family]] = Spatial

    def fields(self, gamma: float) -> dict[str, Any]:
        return {"degrees": 0.0, "pixels": gamma}
