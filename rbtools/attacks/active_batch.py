"""The common loop of the attacks in this package: broken examples are removed, the others continue."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rbtools.attacks.active_examples import EACH_STEP, CheckSchedule, check_schedule
from rbtools.attacks.losses import AttackObjective
from rbtools.attacks.steps import differentiate, fooled, logits_of
from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.losses import Loss
    from rbtools.attacks.steps import Model
    from rbtools.rng.draws import Draws

    # From a model, a batch and whether more stages follow to (an image each, which of them fool the model).
    Stage = Callable[[Model, "AttackBatch", bool], tuple[Tensor, Tensor]]


STILL_CORRECT, CLEAN = -1, -2
"""In place of the number of a stage: no stage broke the example; it is misclassified without an attack."""


@dataclass(frozen=True)
class AttackBatch:
    """Examples under attack.

    images: float32 (N, C, H, W) in [0, 1]; labels: int64 (N,); draws: their random numbers; logits: of the
    unchanged images (N, K), if there was a clean pass; checks: when a loop checks which of them are broken,
    by default as their device suggests.
    """

    images: Tensor
    labels: Tensor
    draws: Draws
    logits: Tensor | None = None
    checks: CheckSchedule | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def schedule(self) -> CheckSchedule:
        """When a loop on these examples checks which of them are broken."""
        return self.checks or check_schedule(self.images.device)

    def take(self, index: Tensor) -> AttackBatch:
        """Some of the examples, by positions or by a mask."""
        logits = None if self.logits is None else self.logits[index]
        images, labels, draws = self.images[index], self.labels[index], self.draws.take(index)
        return AttackBatch(images, labels, draws, logits, self.checks)

    def goal(self, loss: Loss, targets: Tensor | None = None) -> AttackObjective:
        """The loss for these examples."""
        return AttackObjective(loss, self.labels, self.labels if targets is None else targets)


def run_stages(
    model: Model, batch: AttackBatch, stages: Callable[[int], list[Stage]], *, clean_pass: bool
) -> tuple[Tensor, Tensor, int]:
    """Run the stages one after another on the examples that are still classified correctly.

    Returns the images (N, C, H, W), the number of the stage that broke each (N,), and how many classes the
    model has (0 without a clean pass).

    `stages` returns the stages for a number of classes. Examples of the last stage are STILL_CORRECT unless
    it reports them as broken.
    """
    perturbed = batch.images.clone()
    by = torch.full_like(batch.labels, STILL_CORRECT)
    left = torch.arange(len(batch), device=batch.labels.device)
    with torch.no_grad():
        classes = 0
        if clean_pass:
            batch = dataclasses.replace(batch, logits=logits_of(model, batch.images))
            assert batch.logits is not None
            classes = batch.logits.shape[1]
            wrong = fooled(model, batch.images, batch.logits, batch.labels)
            by[wrong] = CLEAN
            left = (~wrong).nonzero()[:, 0]
            batch = batch.take(left)
        todo = stages(classes)
        for number, stage in enumerate(todo):
            if not len(batch):
                break
            points, broken = _run_stage(stage, model, batch, number + 1 < len(todo))
            perturbed[left] = points
            by[left] = torch.where(broken, number, STILL_CORRECT)
            on = (~broken).nonzero()[:, 0]
            if len(on) < len(left):
                left, batch = left[on], batch.take(on)
    return perturbed, by, classes


def _run_stage(stage: Stage, model: Model, batch: AttackBatch, more: bool) -> tuple[Tensor, Tensor]:
    """The points of a stage, and which fool the model.

    Where loops check seldom, the fast model alone decides in them, and the exact model confirms what it found
    once, at the end. Examples on which they disagree are attacked again with a confirmation at each step, so
    that their points are those of a loop that checks at each step.
    """
    confirm = getattr(model, "confirm", None)
    if batch.schedule.each_step or confirm is None:
        return stage(model, batch, more)
    points, broken = stage(Unconfirmed(model), batch, more)
    rows = broken.nonzero()[:, 0]
    if len(rows):
        doubtful = rows[~confirm(points[rows], batch.labels[rows])]
        if len(doubtful):
            again = dataclasses.replace(batch.take(doubtful), checks=EACH_STEP)
            points[doubtful], broken[doubtful] = stage(model, again, more)
    return points, broken


class Unconfirmed:
    """A fast model whose decisions nothing confirms."""

    confirm = None

    def __init__(self, model: Model) -> None:
        self.model, self.chunk_size = model, getattr(model, "chunk_size", None)

    def __call__(self, images: Tensor) -> Tensor:
        return self.model(images)


class Evaluated(NamedTuple):
    """The result at some points: which are still classified correctly (N,) and, for these only (with
    `everyone` for all), the value (S,) and the gradient (S, C, H, W) of the loss."""

    still_correct: Tensor
    loss: Tensor
    gradient: Tensor


# If most examples of a graph are broken, it is discarded: a second forward pass on the rest costs less than a
# backward pass through all (a backward pass to the images costs between one and two forward passes).
_WORTH_A_SECOND_FORWARD = 0.5


def in_chunks(model: Model, count: int, part: Callable[[slice], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """The results of `part` for all rows of `count` examples, in chunks of the model's `chunk_size`.

    An attack gets more examples than a chunk holds, so that chunks stay full as broken examples are removed.
    """
    size = getattr(model, "chunk_size", None) or count
    if count <= size:
        return part(slice(None))
    chunks = [part(slice(start, start + size)) for start in range(0, count, size)]
    return tuple(torch.cat(columns) for columns in zip(*chunks, strict=True))


def loss_and_gradient(
    model: Model, points: Tensor, goal: AttackObjective, *, passes: int = 1, everyone: bool = False
) -> Evaluated:
    """One forward pass, and one backward pass for the examples that are still classified correctly.

    `passes`: for randomised models, gradient, loss and classification are averaged over that many passes.
    `everyone`: broken examples get a gradient, too.
    """

    def part(rows: slice) -> Evaluated:
        return _loss_and_gradient(model, points[rows], goal.take(rows), passes, everyone)

    return Evaluated(*in_chunks(model, len(points), part))


def _loss_and_gradient(
    model: Model, points: Tensor, goal: AttackObjective, passes: int, everyone: bool
) -> Evaluated:
    with torch.enable_grad():
        inputs = points.detach().requires_grad_(True)
        logits = logits_of(model, inputs)
    if passes > 1:
        return _averaged(model, points, goal, passes, everyone)
    if everyone:
        still_correct = logits.detach().argmax(1) == goal.labels
    else:
        still_correct = ~fooled(model, points, logits, goal.labels)
    count = len(still_correct) if everyone else int(still_correct.sum())
    if count == 0:
        return Evaluated(still_correct, logits.detach()[:0, 0], points[:0])
    if count < _WORTH_A_SECOND_FORWARD * len(still_correct):
        del logits
        goal = goal.take(still_correct)
        with torch.enable_grad():
            inputs = points[still_correct].detach().requires_grad_(True)
            logits = logits_of(model, inputs)
        _discount(model, forwards=count)
        loss, gradient = differentiate(model, inputs, logits, goal)
        return Evaluated(still_correct, loss, gradient)
    loss, gradient = differentiate(model, inputs, logits, goal)
    if count < len(still_correct):
        _discount(model, backwards=len(still_correct) - count)
        loss, gradient = loss[still_correct], gradient[still_correct]
    return Evaluated(still_correct, loss, gradient)


def _discount(model: Model, *, forwards: int = 0, backwards: int = 0) -> None:
    """Take back from the count of passes what an image had only because of the others in its batch."""
    discount = getattr(model, "discount", None)
    if discount is not None:
        discount(forwards, backwards)


def _averaged(model: Model, points: Tensor, goal: AttackObjective, passes: int, everyone: bool) -> Evaluated:
    logits = loss = gradient = torch.zeros((), device=points.device)
    for _ in range(passes):
        with torch.enable_grad():
            inputs = points.detach().requires_grad_(True)
            one = logits_of(model, inputs)
        value, slope = differentiate(model, inputs, one, goal)
        logits, loss, gradient = logits + one.detach(), loss + value, gradient + slope
    still_correct = logits.argmax(1) == goal.labels
    if everyone:
        return Evaluated(still_correct, loss / passes, gradient / passes)
    return Evaluated(still_correct, loss[still_correct] / passes, gradient[still_correct] / passes)


def misclassified(model: Model, points: Tensor, labels: Tensor, *, passes: int = 1) -> Tensor:
    """Which points are misclassified (N,), by the mean over passes."""
    with torch.no_grad():
        logits = logits_of(model, points)
        for _ in range(passes - 1):
            logits = logits + logits_of(model, points)
        if passes > 1:
            return logits.argmax(1) != labels
        return fooled(model, points, logits, labels)


R = TypeVar("R")


def keep_rows(rows: R, kept: Tensor) -> None:
    """Keep some examples, by a mask or by positions, of a dataclass of tensors with one row per example (and
    of objectives), in place; its other fields stay."""
    for field in dataclasses.fields(rows):  # type: ignore[arg-type]
        value = getattr(rows, field.name)
        if isinstance(value, AttackObjective):
            setattr(rows, field.name, value.take(kept))
        elif isinstance(value, torch.Tensor):
            setattr(rows, field.name, value[kept])
