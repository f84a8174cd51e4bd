"""Searches in families of transformations: over all points of a grid, over random points or by gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.attacks import losses
from rbtools.attacks.active_examples import wide
from rbtools.attacks.drive import Iterate, SteppedAttack
from rbtools.lazy import torch
from rbtools.registry import param
from rbtools.threats.family import Family

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

    from rbtools.attacks.active_examples import AttackBatch
    from rbtools.attacks.losses import AttackObjective

MODES = ("grid", "random", "gradient")


@dataclass(frozen=True, kw_only=True)
class FamilySearch(SteppedAttack):
    """Base class of the attacks in a family of transformations (Engstrom et al. 2019, arXiv:1712.02779).

    With `mode="grid"`, every point of a grid is tried, and the result is exact for these points. With
    "random", the result is the worst of `samples` random points. With "gradient", `steps` steps follow the
    sign of the gradient of the margin, from `restarts` random points. The results of "random" and "gradient"
    are upper bounds of the accuracy. In a grid and along gradients, an example is dropped at the first point
    that fools the model. A grid begins with the points of the largest strength, which fool most models, or of
    the smallest strength with `order="near"`. If no point fools the model, and always for random points, the
    result is the point with the smallest margin.
    """

    version: ClassVar[int] = 1
    loss: ClassVar[str] = "margin"
    minimal: ClassVar[bool] = True
    for_nearest: ClassVar[Mapping[str, Any]] = {"order": "near"}
    precise: ClassVar[bool] = True  # every point is judged in float32
    uses_logits: ClassVar[bool] = False
    unbroken = "best_points"

    mode: str = param(
        "grid",
        "Try all points of a grid, take the worst of --samples random points, or follow gradients.",
        choices=MODES,
    )
    order: str = param(
        "far",
        "Order of the points of a grid: the strongest first, which is faster, or the weakest (near).",
        choices=("far", "near"),
        optional=True,
    )
    samples: int = param(10, "Number of random points (with --mode random).", check="positive", optional=True)
    steps: int = param(100, "Number of steps (with --mode gradient).", check="positive", optional=True)
    restarts: int = param(
        1, "Number of random starts (with --mode gradient).", check="positive", optional=True
    )

    @property
    def family(self) -> Family:
        threat = self.threat
        assert isinstance(threat, Family)
        return threat

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of grid values for each coordinate of a point."""
        raise NotImplementedError

    @property
    def uses_gradients(self) -> bool:  # type: ignore[override]
        return self.mode == "gradient"

    @property
    def random(self) -> bool:
        return self.mode != "grid"

    @property
    def any_counts(self) -> bool:
        return self.mode != "random"

    def shortened(self, steps: int) -> Self:
        """An attack that takes the worst of `steps` random points, as in the training of Engstrom et al."""
        return replace(self, mode="random", samples=steps)

    @property
    def most_passes(self) -> int:
        return self.length * (2 * self.restarts if self.mode == "gradient" else 1)

    @property
    def length(self) -> int:
        sizes = {"random": self.samples, "gradient": self.steps + 1}
        return sizes.get(self.mode) or self.family.grid_size(self.counts)

    def said(self) -> dict[str, Any]:
        if self.mode != "grid":
            return {**super().said(), "bound": "upper"}
        return {**super().said(), "bound": "exact on the grid", "points": self.length}

    def stages(self, classes: int) -> list[Any]:
        return super().stages(classes)[: None if self.mode == "gradient" else 1]

    def begin(self, batch: AttackBatch, restart: int) -> FamilyState:
        family, count = self.family, len(batch)
        lowest = torch.full_like(batch.images.flatten(1)[:, 0], -torch.inf)
        if self.mode == "grid":
            grid = family.grid(self.counts).to(batch.images)
            tried = (grid.flip(0) if self.order == "far" else grid)[None].expand(count, -1, -1)
        else:
            draws = batch.draws if self.mode == "random" else batch.draws.child(f"start{restart}")
            shape = (self.samples if self.mode == "random" else 1, len(family.most))
            tried = family.at(draws.uniform(shape).to(batch.images))
        start = tried[:, 0]
        return FamilyState(batch.images, start, batch.goal(losses.margin), tried, start, lowest)

    def ask(self, state: FamilyState, step: int) -> Tensor:
        return state.points if self.mode == "gradient" else state.tried[:, step]

    def question(self, state: Any, everyone: bool) -> Callable[[Tensor, AttackObjective], Any]:
        threat, model = self.threat, state.model

        def loss(points: Tensor, goal: AttackObjective) -> Any:
            return model.loss(threat.images(points, state.images), goal)._replace(points=points)

        def loss_and_gradient(points: Tensor, goal: AttackObjective) -> Any:
            with torch.enable_grad():
                numbers = points.detach().requires_grad_(True)
                images = threat.images(numbers, state.images)
            seen = model.loss_and_gradient(images.detach(), goal, everyone=True)
            (gradient,) = torch.autograd.grad(images, numbers, seen.gradient)
            return seen._replace(gradient=gradient)

        return loss_and_gradient if self.mode == "gradient" else loss

    def tell(self, state: FamilyState, seen: Any, step: int) -> None:
        value = seen.loss.to(state.best)
        better = value > state.best
        points = state.points if self.mode == "gradient" else seen.points
        state.best_points = torch.where(wide(better, points), points, state.best_points)
        state.best = torch.where(better, value, state.best)
        if self.mode == "gradient":
            family = self.family
            signs, reach = seen.gradient.sign().unbind(1), 2.5 / self.steps
            moves = [reach * most * sign for most, sign in zip(family.most, signs, strict=True)]
            state.points = family.project(points + torch.stack(moves, 1), state.images)


@dataclass
class FamilyState(Iterate):
    """The points `tried` (N, S, P) of a grid or of random draws, and the margins `best` (N,) of
    `best_points`."""

    tried: Tensor
    best_points: Tensor
    best: Tensor
