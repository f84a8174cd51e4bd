"""The base class of all stages in front of a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rbtools.lazy import Tensor
from rbtools.registry import Registered

Backward = Literal["own", "identity", "stand-in", "none"]


@dataclass(frozen=True, kw_only=True)
class Defence(Registered):
    """A stage, which is a transformation of images.

    `backward` selects the gradient that attacks use for the stage. `own` differentiates the operations of the
    stage, `identity` uses the gradient of the identity function (BPDA, Athalye et al., ICML 2018), and
    `stand-in` uses the gradient of the function `stand_in`. The forward pass always computes the stage
    itself. A random stage draws its random numbers with torch, with one row per image.

    Shape: images are float32 (N, C, H, W) in [0, 1], and the result is float32 (N, C, H', W') in [0, 1].
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    backward: ClassVar[Backward] = "own"

    def __call__(self, images: Tensor) -> Tensor:
        raise NotImplementedError

    def stand_in(self, images: Tensor) -> Tensor:
        """A differentiable approximation of the stage, with the same output shape."""
        raise NotImplementedError
