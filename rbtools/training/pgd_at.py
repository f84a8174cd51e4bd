"""PGD: adversarial training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.training.base import Adversarial, LossTerms, cross_entropy

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class PGDTraining(Adversarial):
    """Adversarial training (Madry et al. 2018, arXiv:1706.06083): CE(x').

    x' ascends the cross-entropy from a uniform start in the ball. One step of twice the radius
    (`attack_steps=1`, and for eps 8 `step_size=16`) ends at x + eps * sign g, with the gradient g at that
    start: the FGSM training of PRBench's code (wellzline/PRBenchmark, fgsm_loss).
    """

    name: ClassVar[str] = "pgd"
    version: ClassVar[int] = 1
    inner: ClassVar[str | None] = "ce"
    start: ClassVar[str] = "uniform"

    @property
    def outer_passes(self) -> tuple[int, int]:
        return 1, 1

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, inner_result: Tensor) -> LossTerms:
        logits = model(inner_result)
        return LossTerms(cross_entropy(logits, labels), adversarial=logits)
