from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from rbtools.lazy import F
from rbtools.registry import param, rare_param
from rbtools.search.driver import Algorithm

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclasses.dataclass(frozen=True, kw_only=True)
class DARTS(Algorithm):
    """DARTS-V1 (Liu et al., ICLR 2019), which trains a supernet's weights and architecture in turn.

    SGD trains the weights on half of the training images, and Adam trains the architecture parameters on the
    other half. On each edge, the derived cell has the operation with the largest parameter. The settings are
    those of the DARTS search in NAS-Bench-201.
    """

    name: ClassVar[str] = "darts"
    supernet: ClassVar[bool] = True
    loop: ClassVar[str] = "alternating"

    epochs: int = param(50, "Epochs of the search.", check="positive")
    steps: int | None = param(None, "Largest number of steps per epoch.", check="positive")
    batch_size: int = param(64, "Images per step.", check="positive")
    lr: float = param(0.025, "First learning rate of the weights, before cosine decay.", check="positive")
    lr_min: float = param(0.001, "Last learning rate of the weights.", check="non-negative")
    momentum: float = param(0.9, "Nesterov momentum of SGD.", check="fraction")
    weight_decay: float = param(5e-4, "Weight decay of the weights.", check="non-negative")
    clip: float = rare_param(5.0, "Clip the weights' gradient to this norm.", check="positive")
    arch_lr: float = param(3e-4, "Learning rate of the architecture parameters.", check="positive")
    arch_decay: float = param(1e-3, "Weight decay of the architecture parameters.", check="non-negative")

    def architecture_loss(self, model: nn.Module, images: Tensor, labels: Tensor, epoch: int) -> Tensor:
        """Returns the loss of the architecture parameters, on images that do not train the weights."""
        return F.cross_entropy(model(images), labels)
