"""What the two pairing methods share: the squared distance between clean and adversarial outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.registry import param
from rbtools.training.base import Adversarial, Terms, cross_entropy

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Pairing(Adversarial):
    """CE + lambda * ||p(x') - p(x)||^2; `classified` says whether the cross-entropy is that of x or of x'."""

    inner: ClassVar[str | None] = "ce"
    start: ClassVar[str] = "uniform"
    classified: ClassVar[str]

    lambda_: float = param(1.0, "Weight of the distance.", name="lambda", check="non-negative")
    pair: str = param(
        "softmax",
        "What is paired: probabilities (PRBench) or logits (Kannan et al.).",
        choices=("softmax", "logits"),
    )

    def terms(self, model: nn.Module, images: Tensor, labels: Tensor, solved: Any) -> Terms:
        from rbtools.attacks.steps import widen

        clean, adversarial = model(images), model(solved)
        outputs = [widen(logits) for logits in (clean, adversarial)]
        if self.pair == "softmax":
            outputs = [logits.softmax(dim=1) for logits in outputs]
        distance = (outputs[1] - outputs[0]).square().sum(1)
        own = clean if self.classified == "clean" else adversarial
        return Terms(cross_entropy(own, labels) + self.lambda_ * distance, clean, adversarial)
