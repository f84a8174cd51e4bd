"""The loop of all step-by-step attacks. In each step, the loop gets points from the attack, evaluates the
model at these points, and passes the results for the unbroken examples to the attack."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.attacks import losses
from rbtools.attacks.active_examples import ActiveExamples, ExampleRows
from rbtools.attacks.base import SequentialAttack
from rbtools.attacks.losses import AttackObjective
from rbtools.attacks.partial_results import continued, keep
from rbtools.attacks.replays import Replays

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import AttackBatch, Stage
    from rbtools.attacks.oracle import Oracle


@dataclass
class Iterate(ExampleRows):
    """The state of a run. `images` (N, C, H, W) in [0, 1] are the unchanged images, `points` are the current
    points, and `goal` is the loss to maximise. The loop sets `model`. Attacks that need further fields define
    a subclass."""

    images: Tensor
    points: Tensor
    goal: AttackObjective
    model: Oracle = field(init=False, repr=False)


class SteppedAttack(SequentialAttack):
    """Base class of step-by-step attacks, which define `begin`, `tell` and, if necessary, the other methods.

    The code of an attack does not depend on the device, the chunks, the fast copy of the model, the samples
    of a randomised model, 8-bit images or earlier stages.
    """

    steps: int
    restarts: int = 1
    # Whether a GPU may replay the steps (rbtools.attacks.replays). `ask`, `question` and `tell` then depend
    # on the step number only through the value of `prepare`.
    replayed: ClassVar[bool] = False
    # How many times the host waits for a GPU at each check of the broken examples; checks are rarer by
    # this factor.
    waits: ClassVar[int] = 1
    # The field of the state with the results for unbroken examples: "points" after the last step, or another.
    unbroken: str = "points"

    @property
    def length(self) -> int:
        """The number of steps in a run."""
        return self.steps

    def length_for(self, state: Any) -> int:
        """The number of steps of a run from this state."""
        return self.length

    @property
    def any_counts(self) -> bool:
        """True if the result for an example is the first point that fools the model; the example is then
        dropped. If false, only the last point of each example counts."""
        return self.iterate == "any"

    def goal(self, batch: AttackBatch) -> AttackObjective:
        """The loss to maximise. By default, the loss is the cross-entropy."""
        return batch.goal(losses.cross_entropy)

    def begin(self, batch: AttackBatch, restart: int) -> Iterate:
        """Returns the state at the start of run number `restart`, with the images as points."""
        return Iterate(batch.images, batch.images, self.goal(batch))

    def prepare(self, state: Any, step: int, due: bool) -> object:
        """Prepare a step. Returns None to skip the step, and otherwise a value; only steps with equal values
        can be replays of each other. If `due` is true, the host may wait for a GPU here."""
        return ()

    def ask(self, state: Any, step: int) -> Tensor:
        """The points (N, C, H, W) at which a step evaluates the model. Steps are counted from 0."""
        points: Tensor = state.points
        return points

    def question(self, state: Any, everyone: bool) -> Callable[[Tensor, AttackObjective], Any]:
        """What a step evaluates, as a function of the points and the loss. By default, this is the gradient
        (for broken examples only with `everyone`), or only the loss if the attack uses no gradients."""
        if not self.uses_gradients:
            return state.model.loss  # type: ignore[no-any-return]
        return functools.partial(state.model.loss_and_gradient, everyone=everyone)

    def tell(self, state: Any, seen: Any, step: int) -> None:
        """Update the state from the result, which is by default the loss (N,) and its gradient (N, C, H, W)
        at the points of `ask`."""
        raise NotImplementedError

    def unseen(self, state: Any, more: bool) -> Tensor | None:
        """The points after the last step that still have to be classified, if any. The caller classifies the
        result of the last run."""
        return state.points if more and self.unbroken == "points" else None

    def stages(self, classes: int) -> list[Stage]:
        return [functools.partial(self.drive, restart) for restart in range(self.restarts)]

    def drive(
        self, restart: int, model: Oracle, batch: AttackBatch, more: bool, begun: Any = None
    ) -> tuple[Tensor, Tensor]:
        """Make one run. Returns a point for each example, and which points are known to fool the model. A
        caller that needs the state passes it, as returned by `begin`; it is updated in place if no examples
        are dropped."""
        state: Any = self.begin(batch, restart) if begun is None else begun
        state.model, active = model, ActiveExamples(batch, batch.schedule.seldom(self.waits))
        everyone = active.everyone or not self.any_counts
        done, replays = continued(model, state, active), Replays(state, active, self.replayed)
        for step in range(done, self.length_for(state)):
            case = self.prepare(state, step, active.schedule.due(step - 2))  # not next to a check
            if case is None:
                continue
            for once in replays.step(case):
                with once:
                    points = self.ask(state, step)
                    seen = self.question(state, everyone)(points, state.goal)
                    if self.any_counts:
                        seen, state = active.update(-1, ~seen.still_correct, points, seen, state)
                    if len(active):
                        self.tell(state, seen, step)
            if self.any_counts:
                (state,) = active.check(step, state)
            if not len(active):
                break
            keep(model, state, active, step + 1)
        last = self.unseen(state, more) if len(active) else None
        if last is not None:
            images = self.threat.images(last, state.images)
            fooled = ~state.model.still_correct(images, state.goal.labels)
            (state,) = active.update(-1, fooled, last, state)
        return active.finish(getattr(state, self.unbroken))
