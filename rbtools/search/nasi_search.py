from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from rbtools.lazy import F, torch
from rbtools.registry import param
from rbtools.search.driver import Algorithm

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclasses.dataclass(frozen=True, kw_only=True)
class NASISearch(Algorithm):
    """NASI (Shu et al., ICLR 2022): search by the gradients of a supernet at initialisation.

    In each of `steps=100` steps, an architecture is sampled with Gumbel noise. For each architecture, the
    trace norm of the neural tangent kernel is estimated by the squared norm of the gradient on a mini-batch.
    If the norm exceeds `limit`, the excess times `penalty` is subtracted (equation 13). Each gradient of a
    penalised norm is divided by the largest gradient norm so far, and the architecture parameters are the
    mean of these scaled gradients (equation 18). In the paper, `penalty` and `limit` are chosen for each
    space. The paper does not contain the defaults of rbtools.
    """

    name: ClassVar[str] = "nasi"
    supernet: ClassVar[bool] = True
    loop: ClassVar[str] = "at initialisation"

    steps: int = param(100, "Number of architectures to sample.", check="positive")
    batch_size: int = param(64, "Images per step.", check="positive")
    penalty: float = param(2.0, "Weight of the excess of the norm above --limit.", check="non-negative")
    limit: float = param(1000.0, "Trace norm above which --penalty applies.", check="positive")
    temperature: float = param(
        1.0, "Temperature of the softmax that relaxes a sampled architecture.", check="positive"
    )

    def reward(self, model: nn.Module, weights: list[Tensor], images: Tensor, labels: Tensor) -> Tensor:
        """Returns the penalised trace norm of the network, differentiable in the architecture weights."""
        loss = F.cross_entropy(model(images), labels)
        slopes = torch.autograd.grad(loss, weights, create_graph=True)
        norm = torch.stack([slope.square().sum() for slope in slopes]).sum()
        return norm - self.penalty * (norm - self.limit).clamp_min(0)
