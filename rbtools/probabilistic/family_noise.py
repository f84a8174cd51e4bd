"""Random transformations: the parameters of a family are sampled uniformly from its box."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from rbtools.lazy import Tensor
from rbtools.probabilistic.distributions import Noise, signed_uniform
from rbtools.rng.draws import Draws
from rbtools.threats.family import Family


@dataclass(frozen=True, kw_only=True)
class FamilyNoise(Noise):
    """Base class of noise in a family of transformations, whose strength is --gamma.

    A sample is a point of the family: each of its parameters is independently uniform in the interval that
    the family allows. A subclass names the family and, in `fields`, its other settings.
    """

    family: ClassVar[type[Family]]
    law: ClassVar[str]
    largest: ClassVar[float] = math.inf

    def fields(self, gamma: float) -> dict[str, Any]:
        """The fields of the family at radius `gamma`."""
        return {self.family.strength: gamma}

    def at(self, gamma: float) -> Family:
        return self.family(**self.fields(gamma))

    @property
    def definition(self) -> str:
        return self.law

    def width(self, shape: tuple[int, ...]) -> int:
        return len(self.family.bounds)

    def unit(self, draws: Draws, shape: tuple[int, ...], draw: int) -> Tensor:
        """A point of the box [-1, 1]: float32 (N, P)."""
        return signed_uniform(draws, (self.width(shape),), draw)

    def shaped(self, normals: Tensor, shape: tuple[int, ...]) -> Tensor:
        return normals.double().div(math.sqrt(2)).erf()

    def apply(self, images: Tensor, unit: Tensor, gamma: float) -> Tensor:
        family = self.at(gamma)
        points = family.at((unit + 1) / 2).float()
        return family.made(points, images.float().expand(len(points), *images.shape[1:]))
