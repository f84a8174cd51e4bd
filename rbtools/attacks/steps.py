"""Building blocks of gradient attacks and of adversarial training: gradients and steps.

All functions compute each example separately, so no result depends on the batching.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rbtools.lazy import F, torch
from rbtools.threats.ball import length, project, unit

if TYPE_CHECKING:
    from torch import Tensor

    Model = Callable[[Tensor], Tensor]
    # Maps logits (N, classes) to the values to maximise, one for each example (N,).
    Objective = Callable[[Tensor], Tensor]


def widen(logits: Tensor) -> Tensor:
    """Convert half-precision logits to float32. In half precision, the gradients of losses are coarse and
    underflow early, and a zero gradient looks like robustness."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def cross_entropy(labels: Tensor) -> Objective:
    """The cross-entropy with `labels` (N,) as an objective."""
    return lambda logits: F.cross_entropy(logits, labels, reduction="none")


def input_gradient(model: Model, images: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
    """Returns the gradient of the objective with respect to `images`, and their logits, which are detached.

    Gradients of the model's parameters are neither computed nor stored. If the logits do not depend on the
    images (an architecture without a connected path), the gradient is zero.

    Shape: images and gradient are (N, C, H, W), and logits are (N, classes).
    """
    with torch.enable_grad():
        images = images.detach().requires_grad_(True)
        logits = widen(model(images))
        total = objective(logits).sum()
        gradient = None
        if total.requires_grad:
            (gradient,) = torch.autograd.grad(total, images, allow_unused=True)
    return torch.zeros_like(images) if gradient is None else gradient, logits.detach()


def ascend(perturbed: Tensor, gradient: Tensor, step_size: float | Tensor, norm: str) -> Tensor:
    """Move by `step_size` (a number, or (N, 1, 1, 1)) in the direction of steepest ascent in `norm`. Points
    with a gradient of 0 do not move."""
    if norm == "linf":
        return perturbed + step_size * gradient.sign()
    return perturbed + step_size * unit(gradient)


def step(
    perturbed: Tensor,
    gradient: Tensor,
    images: Tensor,
    *,
    eps: float | Tensor,
    step_size: float | Tensor,
    norm: str = "linf",
) -> Tensor:
    """The next iterate of projected gradient ascent.

    In linf the result is clip[0,1](clip(x' + step_size * sign g, x - eps, x + eps)) (Madry et al. 2018). In
    sphere, eps and step_size are fractions of the image's norm.

    Shape: perturbed, gradient, images and result are (N, C, H, W). eps and step_size are in pixel units of
    [0, 1], and are numbers or tensors that broadcast to the batch.
    """
    if norm == "sphere":
        step_size = step_size * length(images)
    return project(ascend(perturbed, gradient, step_size, norm), images, eps, norm)
