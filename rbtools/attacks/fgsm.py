"""FGSM: one signed gradient step to the border of the ball."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.steps import Model


@dataclass(frozen=True, kw_only=True)
class FGSM:
    """Fast gradient sign method (Goodfellow et al. 2015, arXiv:1412.6572), L-infinity.

    x' = clip[0,1](x + eps * sign of the gradient of the cross-entropy), without a random start.

    Shape: images float32 (N, C, H, W) in [0, 1], labels int64 (N,); the result is as images.
    """

    name: ClassVar[str] = "fgsm"
    version: ClassVar[int] = 1
    norm: ClassVar[str] = "linf"
    random: ClassVar[bool] = False
    whole_tiles: ClassVar[bool] = False

    eps: float = 8 / 255

    @property
    def stem(self) -> str:
        return "fgsm"

    def __call__(self, model: Model, images: Tensor, labels: Tensor, draws: Any) -> Tensor:
        from rbtools.attacks import steps

        objective = steps.cross_entropy(labels)
        return steps.pgd_step(model, images, images, objective, eps=self.eps, step_size=self.eps)[0]
