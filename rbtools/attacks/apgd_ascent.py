"""The loop of Auto-PGD: steps from a start, with the state and the step rule of a norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rbtools.attacks import active_batch
from rbtools.attacks.active_examples import ActiveExamples
from rbtools.attacks.losses import AttackObjective
from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.target import Network

    # From images, their objective, their start, and the loss and gradient there to the state of a run.
    NewAscent = Callable[[Tensor, AttackObjective, Tensor, Tensor, Tensor], "Ascent"]


@dataclass
class Ascent:
    """The state of the examples of a run, one row each; a subclass per step rule.

    images, point, gradient: (N, C, H, W); loss: (N,).
    """

    images: Tensor
    goal: AttackObjective
    point: Tensor
    loss: Tensor
    gradient: Tensor
    best_point: Tensor = field(init=False)
    best_gradient: Tensor = field(init=False)
    best: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.best_point, self.best_gradient, self.best = self.point, self.gradient, self.loss

    def move(self, number: int) -> Tensor:
        """The point of step `number`, counted from 1, in the ball and the box."""
        raise NotImplementedError

    def check(self, number: int) -> None:
        """Adapt the step size after step `number`."""
        raise NotImplementedError

    def note(self, loss: Tensor, gradient: Tensor) -> None:
        """Update the state with the loss and gradient at the new point."""
        self.loss, self.gradient = loss, gradient
        better = loss > self.best
        self.best = torch.where(better, loss, self.best)
        wide = better.view(-1, *[1] * (self.point.ndim - 1))
        self.best_point = torch.where(wide, self.point, self.best_point)
        self.best_gradient = torch.where(wide, gradient, self.best_gradient)

    def return_to_best(self, wide: Tensor) -> None:
        """Go on from the best point where `wide` (N, 1, 1, 1)."""
        self.point = torch.where(wide, self.best_point, self.point)
        self.gradient = torch.where(wide, self.best_gradient, self.gradient)


def until_broken(
    model: Network,
    batch: active_batch.AttackBatch,
    goal: AttackObjective,
    start: Tensor,
    new: NewAscent,
    count: int,
    *,
    keep_best: bool = False,
) -> tuple[Tensor, Tensor]:
    """`count` steps; returns images (N, C, H, W) in [0, 1], and which are broken (N,).

    An example is dropped at the first point that fools the model; unbroken ones are returned unchanged, or
    with `keep_best` as their points of largest loss, the last iterate aside.
    """
    loop, everyone = ActiveExamples(batch.images, batch.schedule), not batch.schedule.each_step
    seen = model.loss_and_gradient(start, goal, everyone=everyone)
    on, images = loop.mark_broken(~seen.still_correct, start), batch.images
    if on is not None:
        images, goal, start = images[on], goal.take(on), start[on]
    state = new(images, goal, start, seen.loss, seen.gradient)
    for number in range(1, count + 1):
        if not len(loop):
            break
        point = state.move(number)
        if number == count:  # the last iterate needs no gradient
            fooled = ~model.still_correct(point, state.goal.labels)
            on = loop.mark_broken(fooled, point)
            if on is not None:
                active_batch.keep_rows(state, on)
            break
        seen = model.loss_and_gradient(point, state.goal, everyone=everyone)
        state.point = point
        on = loop.mark_broken(~seen.still_correct, point)
        if on is not None:
            active_batch.keep_rows(state, on)
        state.note(seen.loss, seen.gradient)
        state.check(number)
        on = loop.compact(number)
        if on is not None:
            active_batch.keep_rows(state, on)
    return loop.finish(state.best_point if keep_best else None)


def highest(
    model: Network,
    batch: active_batch.AttackBatch,
    goal: AttackObjective,
    start: Tensor,
    new: NewAscent,
    count: int,
) -> Tensor:
    """The points (N, C, H, W) of highest loss in `count` steps, whether they fool the model or not."""
    seen = model.loss_and_gradient(start, goal, everyone=True)
    state = new(batch.images, goal, start, seen.loss, seen.gradient)
    for number in range(1, count + 1):
        state.point = state.move(number)
        seen = model.loss_and_gradient(state.point, goal, everyone=True)
        state.note(seen.loss, seen.gradient)
        state.check(number)
    return state.best_point
