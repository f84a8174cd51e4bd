"""The one loop of attacks by gradient steps.

Each step asks the attack for points, evaluates the model at these points, drops the examples that are broken,
and passes the loss and the gradient of the other examples to the attack.
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
    """The examples of a run, one row each. Attacks that need more fields define a subclass.

    images, points: (N, C, H, W) in [0, 1], the unchanged images and the current points; goal: the increased
    loss.
    """

    images: Tensor
    points: Tensor
    goal: AttackObjective


class SteppedAttack(SequentialAttack):
    """The base of attacks by gradient steps: a dataclass with `begin`, `tell` and perhaps `ask`.

    The code of an attack is the same for a CPU and a GPU, with or without chunks, a fast copy, means over
    draws, 8-bit images and earlier stages.
    """

    steps: int
    restarts: int = 1

    @property
    def any_counts(self) -> bool:
        """Whether an example's result is the first point that fools the model, and the run then drops the
        example; otherwise only the last point counts."""
        return self.iterate == "any"

    def goal(self, batch: AttackBatch) -> AttackObjective:
        """The loss that is increased: the cross-entropy, unless the attack overrides this method."""
        return batch.goal(losses.cross_entropy)

    def begin(self, batch: AttackBatch, restart: int) -> Iterate:
        """The `Iterate` at the start of a run, at the images. `restart` is the run's number, from 0."""
        return Iterate(batch.images, batch.images, self.goal(batch))

    def ask(self, state: Any, step: int) -> Tensor:
        """The points (N, C, H, W) whose gradient a step needs; steps are counted from 0."""
        points: Tensor = state.points
        return points

    def tell(self, state: Any, seen: Evaluated, step: int) -> None:
        """Move `state.points` by the loss (N,) and the gradient (N, C, H, W) at the points of `ask`."""
        raise NotImplementedError

    def stages(self, classes: int) -> list[Stage]:
        return [functools.partial(self._drive, restart) for restart in range(self.restarts)]

    def _drive(self, restart: int, model: Network, batch: AttackBatch, more: bool) -> tuple[Tensor, Tensor]:
        """Make one run; return (a point for each example, which points are known to fool the model)."""
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
