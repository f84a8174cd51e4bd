"""The loop of all attacks by gradient steps. In each step, the loop asks the attack for points, evaluates the
model there, and passes the loss and the gradient of the unbroken examples to the attack."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools.attacks import losses
from rbtools.attacks.active_examples import ActiveExamples, ExampleRows
from rbtools.attacks.base import SequentialAttack
from rbtools.attacks.losses import AttackObjective
from rbtools.attacks.partial_results import continued, keep

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import AttackBatch, Stage
    from rbtools.attacks.oracle import Evaluated, Oracle


@dataclass
class Iterate(ExampleRows):
    """The state of a run. `images` (N, C, H, W) in [0, 1] are the unchanged images, `points` are the current
    points, and `goal` is the loss to maximise. Attacks that need more fields define a subclass."""

    images: Tensor
    points: Tensor
    goal: AttackObjective


class SteppedAttack(SequentialAttack):
    """Base class of attacks by gradient steps, which define `begin`, `tell` and, if necessary, `ask`.

    The code of an attack does not depend on the device, the chunks, the fast copy of the model, the samples
    of a randomised model, 8-bit images or earlier stages.
    """

    steps: int
    restarts: int = 1

    @property
    def any_counts(self) -> bool:
        """True if the first point that fools the model is the result of an example, which is then dropped. If
        false, only the last point of each example counts."""
        return self.iterate == "any"

    def goal(self, batch: AttackBatch) -> AttackObjective:
        """The loss to maximise. By default, the loss is the cross-entropy."""
        return batch.goal(losses.cross_entropy)

    def begin(self, batch: AttackBatch, restart: int) -> Iterate:
        """Returns the state at the start of run number `restart`, with the images as points."""
        return Iterate(batch.images, batch.images, self.goal(batch))

    def ask(self, state: Any, step: int) -> Tensor:
        """The points (N, C, H, W) at which a step needs the gradient. Steps are counted from 0."""
        points: Tensor = state.points
        return points

    def tell(self, state: Any, seen: Evaluated, step: int) -> None:
        """Update `state.points` from the loss (N,) and gradient (N, C, H, W) at the points of `ask`."""
        raise NotImplementedError

    def stages(self, classes: int) -> list[Stage]:
        return [functools.partial(self._drive, restart) for restart in range(self.restarts)]

    def _drive(self, restart: int, model: Oracle, batch: AttackBatch, more: bool) -> tuple[Tensor, Tensor]:
        """Make one run. Returns a point for each example, and which points are known to fool the model."""
        state: Any = self.begin(batch, restart)
        active = ActiveExamples(batch)
        everyone = active.everyone or not self.any_counts
        done, state, model = continued(model, state, active)
        for step in range(done, self.steps):
            points = self.ask(state, step)
            seen = model.loss_and_gradient(points, state.goal, everyone=everyone)
            if self.any_counts:
                seen, state, model = active.update(step, ~seen.still_correct, points, seen, state, model)
            if not len(active):
                break
            self.tell(state, seen, step)
            keep(model, state, active, step + 1)
        if more and len(active):  # the caller checks the last points of the last run
            fooled = ~model.still_correct(state.points, state.goal.labels)
            (state,) = active.update(-1, fooled, state.points, state)
        return active.finish(state.points)
