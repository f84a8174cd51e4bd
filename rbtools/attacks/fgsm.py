"""FGSM: one signed gradient step to the border of the ball."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks import losses, steps
from rbtools.attacks.active_examples import judged
from rbtools.attacks.base import SequentialAttack

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import AttackBatch, Stage
    from rbtools.attacks.target import Network


@dataclass(frozen=True, kw_only=True)
class FGSM(SequentialAttack):
    """Fast gradient sign method (Goodfellow et al. 2015, arXiv:1412.6572), L-infinity.

    x' = clip[0,1](x + eps * sign of the gradient of the cross-entropy), without a random start.

    Shape: images float32 (N, C, H, W) in [0, 1], labels int64 (N,); the result is as images.
    """

    name: ClassVar[str] = "fgsm"
    version: ClassVar[int] = 1
    mean_of: ClassVar[str] = "loss"
    loss: ClassVar[str] = "ce"
    random: ClassVar[bool] = False
    clean_pass: ClassVar[bool] = False
    single_step: ClassVar[bool] = True

    eps: float = 8 / 255

    def stages(self, classes: int) -> list[Stage]:
        return [self._step]

    def _step(self, model: Network, batch: AttackBatch, more: bool) -> tuple[Tensor, Tensor]:
        seen = model.loss_and_gradient(batch.images, batch.goal(losses.cross_entropy), everyone=True)
        moved = steps.ascend(batch.images, seen.gradient, self.eps, "linf").clamp_(0, 1)
        return judged(model, batch, moved, more)
