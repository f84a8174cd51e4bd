"""Corruption training, which uses random noise instead of an attack."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools import probabilistic
from rbtools.errors import RbError
from rbtools.lazy import Tensor, nn
from rbtools.registry import param
from rbtools.rng.draws import Draws
from rbtools.training.base import NOISES, Method, noisy

TRANSFORMATIONS = tuple(name for name in probabilistic.NOISES if name not in (*NOISES, "corruption"))


@dataclass(frozen=True, kw_only=True)
class CorruptionTraining(Method[Tensor]):
    """Training on random noise in the ball (PRBench's Corr methods). The loss is CE(x + delta), one delta per
    image.

    The radius is the standard deviation of Gaussian noise and the scale of Laplace noise, and the noise is
    clamped to the ball. PRBench's code (wellzline/PRBenchmark, attack_algorithms.py) samples noise with scale
    1 before it is clamped (`scale="unit"`). Then x + delta is clipped to [0, 1].

    With `sigma`, the method is the training for randomised smoothing (Cohen, Rosenfeld and Kolter, ICML 2019,
    section 3.3). The loss is CE(x + sigma * z), with z ~ N(0, 1) for each pixel and channel; the noise is not
    clamped to a ball, and the images are not clipped.

    With a transformation as noise (rotation, hue, patch ...), its parameters are uniform up to the
    strength `gamma`, as in rb-pr.
    """

    name = "corruption"
    inner = "noise"

    eps: float = param(8 / 255, "Radius of the L-infinity ball.", unit="eps", check="non-negative")
    noise: str = param("uniform", "Distribution of the noise.", choices=(*NOISES, *TRANSFORMATIONS))
    gamma: float | None = param(
        None,
        "Strength of a transformation that is used as noise, such as 30 degrees for --noise rotation. "
        " [default: the largest that rb-pr measures by default]",
        check="non-negative",
        optional=True,
    )
    scale: str = param(
        "eps",
        "Scale of gaussian and laplace noise before it is clamped: eps as in PRBench's paper, or 1 (unit)"
        " as in its code.",
        choices=("eps", "unit"),
        optional=True,
    )
    sigma: float = param(
        0.0,
        "If above 0, train for rb-certify smooth, with Gaussian noise of this standard deviation that is"
        " neither clamped nor clipped.",
        check="non-negative",
        optional=True,
    )

    def __post_init__(self) -> None:
        if self.gamma is None or self.noise not in TRANSFORMATIONS:
            return
        largest = probabilistic.NOISES.build(self.noise).largest
        if self.gamma > largest:
            raise RbError(f"gamma is {self.gamma:g}. Expected at most {largest:g} for noise {self.noise}.")

    @property
    def unused(self) -> dict[str, str]:
        if self.noise in TRANSFORMATIONS:
            return dict.fromkeys(
                ("eps", "scale", "sigma"), f"--noise {self.noise}, whose strength is --gamma"
            )
        idle = {"gamma": f"--noise {self.noise}, whose radius is --eps"}
        return idle | self._unused_in_ball

    @property
    def _unused_in_ball(self) -> dict[str, str]:
        if self.noise == "gaussian":
            return dict.fromkeys(("eps", "scale"), "--sigma, whose noise is unbounded") if self.sigma else {}
        idle = {"scale": "--noise uniform, which fills the ball"} if self.noise == "uniform" else {}
        return {**idle, "sigma": f"--noise {self.noise}; smoothing needs --noise gaussian"}

    def inner_attack(self, model: nn.Module, images: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        if self.sigma and self.noise == "gaussian":
            normal = draws.child("noise").normal(tuple(images.shape[1:]))
            return images.add(normal.to(images), alpha=self.sigma)
        if self.noise in TRANSFORMATIONS:
            noise = probabilistic.NOISES.build(self.noise)
            gamma = float(noise.radii.split(",")[-1]) if self.gamma is None else self.gamma
            made: Tensor = noise.apply(
                images, noise.unit(draws.child("noise"), tuple(images.shape[1:]), 0), gamma
            )
            return made
        return noisy(images, draws, self.noise, self.eps, "noise", self.scale)
