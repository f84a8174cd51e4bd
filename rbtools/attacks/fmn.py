"""FMN searches for the nearest adversarial example in a ball whose radius adapts to the decision boundary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks import losses, minimal_norm, steps
from rbtools.attacks.base import norm_param
from rbtools.attacks.minimal_norm import MinimalNormAttack, Search
from rbtools.lazy import torch
from rbtools.registry import param, rare_param
from rbtools.threats import ball

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.oracle import Oracle

_TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class FMN(MinimalNormAttack):
    """The fast minimum-norm attack (Pintor et al. 2021, arXiv:2102.12827, algorithm 1), untargeted.

    The attack minimises the margin z_y - (largest other logit) in a ball with a separate radius for each
    example. If the point is adversarial, the radius shrinks by the factor 1 - gamma. If the point is not
    adversarial, the radius grows by the factor 1 + gamma. Before the first adversarial point, the radius
    instead grows to the distance at which the linearised margin is zero, if this distance is larger. The
    paper does not have this last condition, but clipping to the box shortens every step: without the
    condition, the search does not reach the boundary for most images of digits in L2. The step size and gamma
    decrease along half a cosine. The search does not use eps, but only adversarial examples within eps count
    as a success. `run` also returns the distances as "distance" (infinite if there is no adversarial
    example).

    Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,). Images without an
    adversarial example within eps are returned unchanged.
    """

    name: ClassVar[str] = "fmn"
    version: ClassVar[int] = 1
    loss: ClassVar[str] = "margin"

    eps: float | None = 8 / 255  # type: ignore[assignment]  # None: any distance
    norm: str = norm_param("l1")
    steps: int = param(100, "Number of gradient steps.", check="positive")
    step_size: float = rare_param(1.0, "L2 size of the first step.", check="positive")
    last_step_size: float = param(0.01, "L2 size of the last step.", check="positive")
    gamma: float = rare_param(0.05, "Relative change of the radius in the first step.", check="positive")
    last_gamma: float = param(0.001, "Relative change of the radius in the last step.", check="positive")

    def search(
        self,
        model: Oracle,
        images: Tensor,
        labels: Tensor,
        targets: Tensor | None = None,
        start: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """As in the base class, optionally towards the classes `targets` (N,) or from the points `start`."""
        if start is None:
            radius = torch.full((len(images), 1, 1, 1), torch.inf, device=images.device)
        else:
            radius = ball.distances(start, images, self.norm).view(-1, 1, 1, 1)
        objective = losses.AttackObjective(losses.margin, labels, labels)
        if targets is not None:
            objective = losses.AttackObjective(losses.targeted_logit_margin, labels, targets)
        return minimal_norm.nearest(
            model, images, objective, self.norm, self.steps, self._move, radius, start
        )

    def _move(self, search: Search, gradient: Tensor, margin: Tensor, number: int) -> Tensor:
        """Returns the next points, and updates the search radius."""
        radius = search.radius
        gamma = minimal_norm.cosine(self.gamma, self.last_gamma, number, self.steps)
        step = minimal_norm.cosine(self.step_size, self.last_step_size, number, self.steps)
        broken = torch.isfinite(search.distance).view(-1, 1, 1, 1)
        order = ball.DUAL[self.norm]
        slope = torch.linalg.vector_norm(gradient.flatten(1), ord=order, dim=1).clamp_min(_TINY)
        linear = (search.length + margin.abs() / slope).view(-1, 1, 1, 1)
        shrunk = torch.minimum(radius * (1 - gamma), search.distance.view(-1, 1, 1, 1))
        grown = radius * (1 + gamma)
        outside = torch.where(broken | ((linear < grown) & radius.isfinite()), grown, linear)
        radius = search.radius = torch.where(search.adversarial.view(-1, 1, 1, 1), shrunk, outside)
        moved = steps.ascend(search.points, gradient, step, "l2")
        return ball.project(moved, search.images, radius, self.norm)
