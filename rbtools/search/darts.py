from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from rbtools.lazy import F, torch
from rbtools.registry import param, rare_param
from rbtools.search.driver import Algorithm
from rbtools.training.base import mode

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

    epochs: int = param(50, "Number of epochs of the search.", check="positive")
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdvRush(DARTS):
    """AdvRush (Mok et al., ICCV 2021): DARTS with a penalty on the curvature of the loss.

    After `warmup=50` epochs, `gamma=0.01` times the penalty is added to the loss. For the penalty, each image
    is moved by the L2 distance `step_size=1.5` along the sign of the loss gradient. The penalty is the mean
    norm of the change of this gradient. As in the authors' code, BatchNorm is in eval mode for the penalty,
    because the loss of an image must not depend on other images.
    """

    name: ClassVar[str] = "advrush"

    epochs: int = param(60, "Number of epochs of the search.", check="positive")
    warmup: int = param(50, "Epochs before the penalty is added.", check="non-negative")
    gamma: float = rare_param(0.01, "Weight of the penalty.", check="non-negative")
    factor: float = param(4.0, "Further factor of the penalty, as in the authors' code.", check="positive")
    step_size: float = rare_param(1.5, "Length of the step, for pixels in [0, 1].", check="positive")

    def architecture_loss(self, model: nn.Module, images: Tensor, labels: Tensor, epoch: int) -> Tensor:
        loss = super().architecture_loss(model, images, labels, epoch)
        if epoch < self.warmup:
            return loss
        return loss + self.gamma * self.factor * curvature(model, images, labels, self.step_size)


def curvature(model: nn.Module, images: Tensor, labels: Tensor, step: float) -> Tensor:
    """Returns the mean of |grad l(x + z) - grad l(x)|, where z has length `step` along sign(grad l(x)).

    The formula is from Moosavi-Dezfooli et al., CVPR 2019, equation 5. The result is differentiable in the
    model's parameters. Images x are float32 (N, C, H, W) in [0, 1].
    """
    with mode(model, train=False):
        images = images.detach().requires_grad_()
        loss = F.cross_entropy(model(images), labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, images, create_graph=True)
        sign = gradient.detach().sign()
        length = sign.flatten(1).norm(dim=1).clamp_min(1e-7).view(-1, 1, 1, 1)
        moved = (images.detach() + step * sign / length).requires_grad_()
        moved_loss = F.cross_entropy(model(moved), labels, reduction="sum")
        (moved_gradient,) = torch.autograd.grad(moved_loss, moved, create_graph=True)
    penalty: Tensor = (moved_gradient - gradient).flatten(1).norm(dim=1).mean()
    return penalty
