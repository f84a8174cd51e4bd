"""The loop that all attacks by gradient steps use.

In each step, the loop asks the attack for points, evaluates the model at these points, drops the broken
examples, and passes the loss and the gradient of all other examples to the attack.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools.attacks import losses
from rbtools.attacks.active_examples import ActiveExamples, ExampleRows
from rbtools.attacks.base import SequentialAttack
from rbtools.attacks.losses import AttackObjective

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import AttackBatch, Stage
    from rbtools.attacks.target import Evaluated, Network


@dataclass
class Iterate(ExampleRows):
    """The examples in a run, with one row for each example. Attacks that need more fields define a subclass.
    `images` (N, C, H, W) are the unchanged images in [0, 1], `points` (N, C, H, W) are the current points in
    [0, 1], and `goal` is the loss to maximise."""

    images: Tensor
    points: Tensor
    goal: AttackObjective


class SteppedAttack(SequentialAttack):
    """Base class of attacks by gradient steps: a dataclass that defines `begin`, `tell` and, if necessary,
    `ask`.

    An attack needs no separate code for CPU and GPU, chunks, the fast copy of a model, means over samples of
    a randomised model, 8-bit images or earlier stages.
    """

    steps: int
    restarts: int = 1

    @property
    def any_counts(self) -> bool:
        """If true, the first point that fools the model is the result of an example, and the example is
        dropped. If false, only the last point counts."""
        return self.iterate == "any"

    def goal(self, batch: AttackBatch) -> AttackObjective:
        """The loss to maximise. It is the cross-entropy unless the attack overrides this method."""
        return batch.goal(losses.cross_entropy)

    def begin(self, batch: AttackBatch, restart: int) -> Iterate:
        """Returns the `Iterate` at the start of a run, with the images as points. `restart` is the index of
        the run."""
        return Iterate(batch.images, batch.images, self.goal(batch))

    def ask(self, state: Any, step: int) -> Tensor:
        """The points (N, C, H, W) at which a step needs the gradient. Steps are counted from 0."""
        points: Tensor = state.points
        return points

    def tell(self, state: Any, seen: Evaluated, step: int) -> None:
        """Update `state.points` from the loss (N,) and the gradient (N, C, H, W) at the points that `ask`
        returned."""
        raise NotImplementedError

    def stages(self, classes: int) -> list[Stage]:
        return [functools.partial(self._drive, restart) for restart in range(self.restarts)]

    def _drive(self, restart: int, model: Network, batch: AttackBatch, more: bool) -> tuple[Tensor, Tensor]:
        """Make one run. Returns a point for each example, and a mask of the points that are known to fool the
        model."""
        state: Any = self.begin(batch, restart)
        active = ActiveExamples(batch)
        everyone = not (self.any_counts and batch.schedule.each_step)
        for step in range(self.steps):
            points = self.ask(state, step)
            seen = model.loss_and_gradient(points, state.goal, everyone=everyone)
            if self.any_counts:
                seen, state, model = active.update(step, ~seen.still_correct, points, seen, state, model)
            if not len(active):
                break
            self.tell(state, seen, step)
        if more and len(active):  # the caller looks at the last points of the last run
            fooled = ~model.still_correct(state.points, state.goal.labels)
            (state,) = active.update(-1, fooled, state.points, state)
        return active.finish(state.points)
