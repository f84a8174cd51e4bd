"""A corruption with random numbers as noise, with the severity as the radius."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rbtools.corruptions import CORRUPTIONS
from rbtools.errors import RbError
from rbtools.lazy import Tensor, torch
from rbtools.probabilistic.distributions import Noise
from rbtools.registry import param
from rbtools.rng.draws import Draws
from rbtools.units import SEVERITIES

_HALF = 32  # a seed has 64 bits, which do not fit into a signed number


@dataclass(frozen=True, kw_only=True)
class CorruptionNoise(Noise):
    """A corruption of CIFAR-10-C or ImageNet-C with new random numbers for each copy; gamma is the severity.

    A corruption without random numbers, such as contrast, returns the same image each time.
    """

    name: ClassVar[str] = "corruption"
    axis: ClassVar[str] = "severity"
    radii: ClassVar[str] = "1,2,3,4,5"
    largest: ClassVar[float] = float(SEVERITIES[-1])

    corruption: str = param("fog", "The corruption (with --noise corruption).", choices=tuple(CORRUPTIONS))

    @property
    def stem(self) -> str:
        return f"{self.name}-{self.corruption}"

    @property
    def definition(self) -> str:
        return f"{self.corruption} of severity gamma, with its own random numbers for each copy"

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "corruption": self.corruption}

    def width(self, shape: tuple[int, ...]) -> int:
        raise RbError(
            "--sampling rare needs noise that is a function of normal numbers, but corruption noise is not."
            " Use --sampling adaptive."
        )

    def unit(self, draws: Draws, shape: tuple[int, ...], draw: int) -> Tensor:
        """The random numbers to use: int64 (N, 4), with two halves of the seed, the example and the draw."""
        halves = (draws.seed >> _HALF, draws.seed & ((1 << _HALF) - 1))
        columns = [torch.full_like(draws.examples, number) for number in (*halves, draws.offset + draw)]
        return torch.stack([*columns[:2], draws.examples, columns[2]], 1)

    def apply(self, images: Tensor, unit: Tensor, gamma: float) -> Tensor:
        if gamma not in SEVERITIES:
            raise RbError(f"--gamma {gamma:g} is not a severity of {self.corruption}. Choose from 1 to 5.")
        corruption, made = CORRUPTIONS.build(self.corruption), torch.empty_like(images, dtype=torch.float32)
        for number in unit[:, 3].unique().tolist():
            rows = (unit[:, 3] == number).nonzero()[:, 0]
            high, low = unit[rows[0], :2].tolist()
            draws = Draws((high << _HALF) | low, f"noise.{self.stem}", unit[rows, 2], offset=number)
            made[rows] = corruption(images[rows].float(), int(gamma), draws)
        return made
