"""PGD: adversarial training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.training.base import Adversarial, Loss, cross_entropy

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class PGD(Adversarial):
    """Adversarial training (Madry et al. 2018, arXiv:1706.06083): CE(x').

    x' ascends the cross-entropy from a uniform start in the ball.

    Shape: images float32 (N, C, H, W) in [0, 1], labels int64 (N,).
    """

    name: ClassVar[str] = "pgd"
    version: ClassVar[int] = 1
    inner: ClassVar[str | None] = "ce"
    start: ClassVar[str] = "uniform"

    @property
    def passes(self) -> tuple[int, int]:
        """(forward, backward) passes per image of one step."""
        forward, backward = self.inner_passes
        return forward + 1, backward + 1

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, draws: Any) -> Loss:
        perturbed = self.perturb(model, images, labels, draws)
        logits = model(perturbed)
        return Loss(cross_entropy(logits, labels), adversarial_logits=logits.detach())
