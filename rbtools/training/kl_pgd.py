"""KL-PGD: adversarial training on the images of TRADES."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.training.base import Adversarial, Terms, cross_entropy

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class KLPGD(Adversarial):
    """KL-PGD (PRBench, table 2): CE(x').

    x' ascends the divergence KL(p(x) || p(x')) from x + 0.001 * N(0, 1), as in TRADES: the labels are
    not asked.
    """

    name: ClassVar[str] = "kl-pgd"
    version: ClassVar[int] = 1
    inner: ClassVar[str | None] = "kl"
    start: ClassVar[str] = "noise"

    @property
    def outer_passes(self) -> tuple[int, int]:
        return 1, 1

    def terms(self, model: nn.Module, images: Tensor, labels: Tensor, solved: Any) -> Terms:
        logits = model(solved)
        return Terms(cross_entropy(logits, labels), adversarial=logits)
