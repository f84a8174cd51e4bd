"""ERM: standard training, without an attack."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.lazy import Tensor, nn
from rbtools.training.base import LossTerms, Method, cross_entropy


@dataclass(frozen=True, kw_only=True)
class ERM(Method[None]):
    """Empirical risk minimisation: the cross-entropy on the unperturbed images."""

    name = "erm"

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, inner_result: None) -> LossTerms:
        logits = model(images)
        return LossTerms(cross_entropy(logits, labels), clean=logits)
