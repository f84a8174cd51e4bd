"""NASI (Shu et al., ICLR 2022)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from rbtools.lazy import F, torch
from rbtools.registry import param

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclasses.dataclass(frozen=True, kw_only=True)
class NASISearch:
    """NASI (Shu et al., ICLR 2022): the supernet is not trained; its gradient at initialisation decides.

    Of each of `steps=100` architectures, drawn by Gumbel's noise, the trace norm of the neural tangent kernel
    is estimated by the squared norm of a mini-batch's gradient. The architecture parameters take the mean of
    its gradients, each over the largest norm so far (equation 18). Above `limit` the norm is charged
    `penalty` times what is too much (equation 13); the paper sets both by hand for each space, and the
    values here are none of its.
    """

    name: ClassVar[str] = "nasi"
    version: ClassVar[int] = 1
    many: ClassVar[bool] = False
    supernet: ClassVar[bool] = True
    loop: ClassVar[str] = "at initialisation"

    steps: int = param(100, "Architectures that are drawn.", check="positive")
    batch_size: int = param(64, "Images in a step.", check="positive")
    penalty: float = param(2.0, "Charge for what is above the limit.", check="non-negative")
    limit: float = param(1000.0, "Norm above which that is charged.", check="positive")
    temperature: float = param(1.0, "Of the softmax that relaxes a drawn architecture.", check="positive")

    def reward(self, model: nn.Module, weights: list[Tensor], images: Tensor, labels: Tensor) -> Tensor:
        """The penalised trace norm of the network as it is weighed; differentiable in the weighing."""
        loss = F.cross_entropy(model(images), labels)
        slopes = torch.autograd.grad(loss, weights, create_graph=True)
        norm = torch.stack([slope.square().sum() for slope in slopes]).sum()
        return norm - self.penalty * (norm - self.limit).clamp_min(0)
