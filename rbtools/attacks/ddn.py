"""DDN: a search for the nearest adversarial example in L2 by separate steps in direction and norm."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks import losses, minimal_norm, steps
from rbtools.attacks.minimal_norm import MinimalNormAttack, Search
from rbtools.lazy import torch
from rbtools.registry import param, rare_param
from rbtools.threats import ball

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.oracle import Oracle

_LAST_STEP = 0.01  # the length of the last step, as in the paper


@dataclass(frozen=True, kw_only=True)
class DDN(MinimalNormAttack):
    """Decoupled direction and norm (Rony et al. 2019, arXiv:1811.09600, algorithm 1), untargeted.

    The normalised gradient of the cross-entropy determines the direction of a step. The perturbation is then
    scaled to a new norm. The norm is multiplied by 1 - gamma if the point is adversarial, and by 1 + gamma
    otherwise. The paper's quantisation of images to 256 levels is not implemented. The search does not use
    eps, but only adversarial examples within eps count as a success. `run` also returns the distances as
    "distance" (infinite if there is no adversarial example).

    Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,). Images without an
    adversarial example within eps are returned unchanged.
    """

    name: ClassVar[str] = "ddn"
    version: ClassVar[int] = 1
    norm = "l2"
    loss: ClassVar[str] = "ce"

    eps: float | None = 0.5  # type: ignore[assignment]  # None: any distance
    steps: int = param(100, "Number of gradient steps.", check="positive")
    gamma: float = rare_param(0.05, "Relative change of the norm in each step.", check="positive")
    first_norm: float = param(1.0, "Norm of the perturbation in the first step.", check="positive")
    step_size: float = rare_param(1.0, "Size of the first step.", check="positive")

    def search(self, model: Oracle, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        farthest = torch.linalg.vector_norm(torch.maximum(images, 1 - images), dim=(1, 2, 3), keepdim=True)
        radius = torch.full_like(farthest, self.first_norm)
        move = functools.partial(self._move, farthest)
        objective = losses.AttackObjective(losses.cross_entropy, labels, labels)
        return minimal_norm.nearest(model, images, objective, self.norm, self.steps, move, radius)

    def _move(self, farthest: Tensor, search: Search, gradient: Tensor, loss: Tensor, number: int) -> Tensor:
        """Returns the next points, and updates the search radius, which is at most `farthest`."""
        step = minimal_norm.cosine(self.step_size, _LAST_STEP, number, self.steps)
        factor = torch.where(search.adversarial, 1 - self.gamma, 1 + self.gamma).view(-1, 1, 1, 1)
        radius = search.radius = torch.minimum(search.radius * factor, farthest)
        change = steps.ascend(search.points, gradient, step, "l2") - search.images
        return (search.images + radius * ball.unit(change)).clamp_(0, 1)
