"""Noise around an image, computed as a sample of radius 1 (the unit sample) times a radius.

All radii use the same unit sample. Estimates over a range of radii are therefore smooth, and a further radius
costs only one multiplication and addition. Every noise is also a function of standard normal numbers
(`shaped`), in whose space splitting samples rare events.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from rbtools import check_input
from rbtools.errors import RbError
from rbtools.lazy import Tensor, torch
from rbtools.registry import Registered, param, rare_param
from rbtools.rng.draws import Draws, of_images


@dataclass(frozen=True, kw_only=True)
class Noise(Registered):
    """Base class of the noise distributions."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    # What --gamma means: the radius of a ball, or the quantity that bounds a transformation.
    axis: ClassVar[str] = "noise radius γ, on pixels in [0, 1]"
    # The default of --gamma.
    radii: ClassVar[str] = "8/255,0.08,0.1,0.12"

    @property
    def stem(self) -> str:
        """The name of the noise in metrics, such as `uniform` or `uniform.l2`."""
        return self.name

    @property
    def largest(self) -> float:
        """The largest radius."""
        return 1.0

    @property
    def definition(self) -> str:
        """One line that describes the distribution in the record."""
        raise NotImplementedError

    @property
    def settings(self) -> dict[str, Any]:
        return {"noise": self.name, "definition": self.definition}

    def __call__(
        self,
        images: Tensor,
        gamma: float,
        samples: int | None = None,
        *,
        draw: int = 0,
        seed: int = 0,
        examples: Tensor | None = None,
    ) -> Tensor:
        """Return noisy copies of images, such as `Uniform()(images, gamma=0.1)`. The images are not changed.

        Random numbers depend only on (seed, example, draw). Copy number `draw` of an image is the same as in
        `rb-pr --seed`, which classifies the copies 0 to --samples - 1. All radii use the same unit sample.
        `examples` are the positions of the images in their data set. By default, image i is example i.

        Shape: images are floating-point (N, C, H, W) in [0, 1], and examples are int64 (N,). `gamma` is at
        least 0, in pixel units of [0, 1]. The result is float32 (N, C, H, W), on the device of the images,
        and in [0, 1] unless `clip` is false. With `samples`, the result is (samples, N, C, H, W) and contains
        the copies `draw` to `draw + samples - 1`.

        Raises RbError for images that are not a tensor of this shape and range, a negative or infinite
        radius, a `draw` outside [0, 2^32), and invalid examples or seeds.
        """
        images = check_input.floats(images)
        count = 1 if samples is None else samples
        if not 0 <= gamma < math.inf:
            raise RbError(f"gamma is {gamma}. Expected a radius of 0 or more, in pixel units of [0, 1].")
        if count < 1 or not 0 <= draw <= (1 << 32) - count:
            raise RbError(
                f"samples is {count} and draw is {draw}. Expected at least 1 and 0, with a sum up to 2^32."
            )
        draws, shape = of_images(f"noise.{self.stem}", images, seed, examples), tuple(images.shape[1:])
        copies = [self.apply(images, self.unit(draws, shape, draw + i), gamma) for i in range(count)]
        return copies[0] if samples is None else torch.stack(copies)

    def unit(self, draws: Draws, shape: tuple[int, ...], draw: int) -> Tensor:
        """Sample number `draw` of each example at radius 1: float32 (N, *shape)."""
        return self.shaped(draws.normal((self.width(shape),), draw=draw), shape)

    def width(self, shape: tuple[int, ...]) -> int:
        """Return the number of standard normal numbers in one sample for an image of this shape."""
        return math.prod(shape)

    @property
    def shaped_version(self) -> int:
        return 1

    def shaped(self, normals: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The unit sample (N, *shape) as a function of independent standard normal numbers (N, width)."""
        raise NotImplementedError

    def apply(self, images: Tensor, unit: Tensor, gamma: float) -> Tensor:
        """Noisy images at radius `gamma`, in the higher of the two precisions."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class BallNoise(Noise):
    """Base class of noise in a ball, with the norm and the clipping.

    PRBench does not specify whether x + delta is clipped to [0, 1]. advbench clips in training and in
    evaluation. Without clipping, the model receives pixel values that no image has.
    """

    laws: ClassVar[dict[str, str]]

    norm: str = param("linf", "The norm of the ball of radius --gamma.", choices=("linf", "l2"))
    clip: bool = rare_param(True, "Clip noisy images to [0, 1].")

    @property
    def stem(self) -> str:
        return self.name if self.norm == "linf" else f"{self.name}.{self.norm}"

    @property
    def largest(self) -> float:
        return 1.0 if self.norm == "linf" else math.inf

    @property
    def definition(self) -> str:
        """One line that describes scale, projection and clipping in the record."""
        return f"{self.laws[self.norm]}; the model sees {'clip(x+delta,0,1)' if self.clip else 'x+delta'}"

    @property
    def settings(self) -> dict[str, Any]:
        return {"noise": self.name, "norm": self.norm, "clip": self.clip, "definition": self.definition}

    def apply(self, images: Tensor, unit: Tensor, gamma: float) -> Tensor:
        noisy = images.add(unit, alpha=gamma)
        return noisy.clamp_(0, 1) if self.clip else noisy


@dataclass(frozen=True, kw_only=True)
class Uniform(BallNoise):
    """Uniform noise in the ball. In L-infinity, each pixel and channel is independently U(-gamma, gamma).

    PRBench section 3 and advbench sample from the L-infinity ball. In the L2 ball the direction is uniform
    and the length is gamma * u^(1/d), where d is the number of pixels and channels.

    With `truncate`, the noisy pixel is uniform in the part of [x - gamma, x + gamma] that is in [0, 1], as in
    wellzline/PRBenchmark (evaluate.py). The noise of a black pixel at gamma .3 then has a root mean square of
    .173. With clipping, which sets half of the noisy pixels to 0, the root mean square of the noise is .122.
    """

    name = "uniform"
    laws: ClassVar[dict[str, str]] = {
        "linf": "delta=gamma*u, u~U(-1,1) on each pixel and channel",
        "l2": "delta=gamma*u, u uniform in the unit L2 ball",
    }

    truncate: bool = rare_param(
        False,
        "Sample uniformly from the part of the ball inside [0, 1] instead of clipping. PRBench's code"
        " does this; its paper does not say.",
        optional=True,
    )

    def __post_init__(self) -> None:
        if self.truncate and (self.norm != "linf" or not self.clip):
            raise RbError(
                "truncate samples from the part of the L-infinity ball inside [0, 1] instead of clipping."
                " Leave it out with norm l2 or without clip."
            )

    @property
    def definition(self) -> str:
        if self.truncate:
            return "the model sees u~U(max(x-gamma,0),min(x+gamma,1)) on each pixel and channel"
        return super().definition

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | ({"truncate": True} if self.truncate else {})

    def apply(self, images: Tensor, unit: Tensor, gamma: float) -> Tensor:
        if not self.truncate:
            return super().apply(images, unit, gamma)
        images = images.to(torch.promote_types(images.dtype, unit.dtype))
        low, high = (images - gamma).clamp_(min=0), (images + gamma).clamp_(max=1)
        return low.add_(high.sub_(low).mul_(unit.add(1).div_(2))).clamp_(0, 1)

    def unit(self, draws: Draws, shape: tuple[int, ...], draw: int) -> Tensor:
        """In the L-infinity ball, the 2^24 possible values are the odd multiples of 2^-24. The values are
        exact in float32 and, unlike 2 u - 1 with u in [0, 1), symmetric about 0."""
        if self.norm == "linf":
            return signed_uniform(draws, shape, draw)
        return super().unit(draws, shape, draw)

    def width(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape) + (2 if self.norm == "l2" else 0)

    @property
    def shaped_version(self) -> int:
        return 2 if self.norm == "linf" else 1

    def shaped(self, normals: Tensor, shape: tuple[int, ...]) -> Tensor:
        if self.norm == "linf":
            # In float32 the numbers next to 1 are 6e-8 apart, which is too coarse for probabilities of 1e-8.
            return normals.double().div_(math.sqrt(2)).erf_().view(-1, *shape)
        # The first d of d + 2 coordinates of a uniform point on the sphere are uniform in the ball.
        length: Tensor = normals.norm(dim=1, keepdim=True)
        return (normals[:, : math.prod(shape)] / length).view(-1, *shape)


@dataclass(frozen=True, kw_only=True)
class Gaussian(BallNoise):
    """Normal noise projected onto the ball. In L-infinity, sigma is gamma and values are clamped to [-gamma,
    gamma].

    PRBench only states "within the ball". The tables of PRBench agree with clamping, which concentrates
    probability on the border, and not with rejection sampling. In L2, sigma is gamma / sqrt(d), so the root
    mean square length is gamma. Vectors longer than gamma are shortened to gamma.
    """

    name = "gaussian"
    laws: ClassVar[dict[str, str]] = {
        "linf": "delta=clamp(gamma*z,-gamma,gamma), z~N(0,1) on each pixel and channel",
        "l2": "delta=z*min(1,gamma/|z|), z~N(0,gamma^2/d) on each of d pixels and channels",
    }

    def shaped(self, normals: Tensor, shape: tuple[int, ...]) -> Tensor:
        return _projected(normals, self.norm, 1.0).view(-1, *shape)


@dataclass(frozen=True, kw_only=True)
class Laplace(BallNoise):
    """Laplace noise projected onto the ball. In L-infinity, the scale is gamma and values are clamped to
    [-gamma, gamma].

    PRBench only states "within the ball". The tables of PRBench agree with clamping, which concentrates
    probability on the border, and not with rejection sampling. In L2, the scale is gamma / sqrt(2 d), so the
    root mean square length is gamma. Vectors longer than gamma are shortened to gamma.
    """

    name = "laplace"
    laws: ClassVar[dict[str, str]] = {
        "linf": "delta=clamp(gamma*z,-gamma,gamma), z~Laplace(0,1) on each pixel and channel",
        "l2": "delta=z*min(1,gamma/|z|), z~Laplace(0,gamma/sqrt(2d)) on each of d pixels and channels",
    }

    def unit(self, draws: Draws, shape: tuple[int, ...], draw: int) -> Tensor:
        uniform = signed_uniform(draws, shape, draw)
        z = uniform.abs().neg_().log1p_().mul_(uniform.sign().neg_())
        return _projected(z.flatten(1), self.norm, math.sqrt(2)).view(-1, *shape)

    def shaped(self, normals: Tensor, shape: tuple[int, ...]) -> Tensor:
        tail = normals.abs().div_(math.sqrt(2)).erfc_().log_()  # P(|Z| > |z|), for both distributions
        return _projected(tail.mul_(-normals.sign()), self.norm, math.sqrt(2)).view(-1, *shape)


def signed_uniform(draws: Draws, shape: tuple[int, ...], draw: int) -> Tensor:
    """Uniform numbers (N, *shape) in (-1, 1): the odd multiples of 2^-24."""
    return draws.uniform(shape, draw=draw).mul_(2).sub_(1 - 2.0**-24)


def _projected(z: Tensor, norm: str, deviation: float) -> Tensor:
    """Project N points (N, d) onto the unit ball; their coordinates have standard deviation `deviation`."""
    if norm == "linf":
        return z.clamp(-1, 1)
    z = z / (deviation * math.sqrt(z.shape[1]))
    length: Tensor = z.norm(dim=1, keepdim=True)
    return z / length.clamp(min=1)
