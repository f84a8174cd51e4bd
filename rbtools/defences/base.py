"""The base of all stages in front of a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rbtools.lazy import Tensor
from rbtools.registry import Registered

Backward = Literal["own", "identity", "stand-in", "none"]


@dataclass(frozen=True, kw_only=True)
class Defence(Registered):
    """One stage: a transformation of images.

    `backward` is how attacks compute the stage's gradient: `own`, through its operations; `identity`, as if
    the stage changed nothing (BPDA, Athalye et al., ICML 2018); `stand-in`, the gradient of `stand_in`. The
    output is the stage's own in each case. A random stage draws with torch, one row per image.

    Shape:
        images: float32 (N, C, H, W) in [0, 1].
        result: float32 (N, C, H', W') in [0, 1].
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    backward: ClassVar[Backward] = "own"

    def __call__(self, images: Tensor) -> Tensor:
        raise NotImplementedError

    def stand_in(self, images: Tensor) -> Tensor:
        """A differentiable approximation of the stage, of the same shape."""
        raise NotImplementedError
