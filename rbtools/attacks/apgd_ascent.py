"""Auto-PGD (Croce and Hein 2020, arXiv:2003.01690): gradient steps with momentum and an adaptive step size.

In L1 the steps are those of l1-APGD (Croce and Hein 2021, arXiv:2103.01208), projected onto the intersection
of the L1 ball and the box [0, 1].
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks import steps
from rbtools.attacks.active_examples import wide
from rbtools.attacks.drive import Iterate, SteppedAttack
from rbtools.lazy import torch
from rbtools.threats import ball

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import AttackBatch
    from rbtools.attacks.apgd import AutoPGD
    from rbtools.attacks.losses import AttackObjective
    from rbtools.attacks.oracle import Evaluated, Oracle
    from rbtools.rng.draws import Draws

ALPHA = 0.75  # weight of the new step relative to the last move
RHO = 0.75  # share of the steps since the last checkpoint that must have raised the loss
SPARSER = 0.95  # l1: the change is sparser if its number of changed entries falls below this share
# l1: the number of changed entries of the best point per entry of the gradient that a step follows
SPARSITY_RATIO = 1.5
SHRINK, LEAST_STEP = 1.5, 0.1  # l1: divides the step size; the least step size as a share of eps


def apgd(
    attack: AutoPGD, draws: Sequence[int], model: Oracle, batch: AttackBatch, goal: AttackObjective
) -> tuple[Tensor, Tensor]:
    """Run the steps of an attack from a random start. Returns images (N, C, H, W) and a mask (N,) of the
    broken images. `draws` are the numbers of the starts, one for each equal part of the batch.

    An example is broken and dropped as soon as an iterate fools the model. For unbroken examples, the
    unchanged image or the point of largest loss is returned (the last iterate is not considered). In L1, the
    first steps use balls larger than eps, and points in these balls do not count as a success. The steps in
    the ball of radius eps start from the projection of the best point.
    """
    norm, balls = attack.norm, [(attack.eps, attack.steps)]
    if norm == "l1":
        balls = radii(*balls[0])
    rows = torch.arange(len(batch), device=batch.images.device).chunk(len(draws))
    parts = ((batch.images[some], batch.draws.take(some)) for some in rows)
    starts = (border_start(*part, balls[0][0], norm, draw) for part, draw in zip(parts, draws, strict=True))
    start = torch.cat([*starts])
    for (radius, count), (smaller, _) in itertools.pairwise(balls):
        found = model.partial.open(model)
        if found is None:
            larger = Climb(start, goal, radius, count, norm, "last", "best_points")
            found = model.partial.close({"point": larger.drive(0, model, batch, False)[0]})
        start = ball.project(found["point"], batch.images, smaller, norm)
    return Climb(start, goal, *balls[-1], norm, "any", attack.unbroken).drive(0, model, batch, True)


@dataclass(frozen=True)
class Climb(SteppedAttack):
    """The steps of Auto-PGD in one ball. With `iterate="last"`, no example is dropped."""

    replayed: ClassVar[bool] = True

    start: Tensor
    objective: AttackObjective
    eps: float
    steps: int
    norm: str
    iterate: str
    unbroken: str

    @property
    def length(self) -> int:
        """The first step evaluates the start. The last iterate needs no gradient if it is only classified."""
        return self.steps if self.any_counts else self.steps + 1

    def begin(self, batch: AttackBatch, restart: int) -> Ascent:
        kind = SparseAscent if self.norm == "l1" else HalvingAscent
        return kind(batch.images, self.start, self.objective, self.eps, self.norm, self.steps)

    def prepare(self, state: Ascent, step: int, due: bool) -> object:
        if step > 1:
            state.check(step - 1)
        return ()

    def ask(self, state: Ascent, step: int) -> Tensor:
        if step:
            state.points = state.move(step)
        return state.points

    def tell(self, state: Ascent, seen: Evaluated, step: int) -> None:
        (state.note if step else state.first)(seen.loss, seen.gradient)

    def unseen(self, state: Ascent, more: bool) -> Tensor | None:
        self.prepare(state, self.steps, True)
        return state.move(self.steps) if self.any_counts else None


def border_start(images: Tensor, draws: Draws, eps: float, norm: str, draw: int) -> Tensor:
    """Random points on the borders of the balls around `images` (N, C, H, W), in [0, 1].

    In linf, the offset is uniform and scaled so that its largest entry is eps. In l2 the offset has length
    eps and a uniform direction. In linf and l2, the point is clipped to the box [0, 1]. In l1, the offset is
    standard normal, and the point is projected onto the ball and the box. `eps` is in pixel units.
    """
    shape = tuple(images.shape[1:])
    if norm == "linf":
        offset = draws.uniform(shape, draw=draw).to(images) * 2 - 1
        largest = offset.abs().amax(dim=tuple(range(1, images.ndim)), keepdim=True)
        offset = eps * (offset / largest.clamp_min(torch.finfo(offset.dtype).tiny))
    else:
        offset = draws.normal(shape, draw=draw).to(images)
        if norm == "l2":
            offset = eps * ball.unit(offset)
    return ball.project(images + offset, images, eps, norm)


@dataclass
class Ascent(Iterate):
    """The state of a run of `count` gradient steps. `points` and `gradient` are (N, C, H, W), `loss` is (N,),
    and `step_size` is (N, 1, 1, 1). `eps` is in pixel units of [0, 1]."""

    eps: float
    norm: str
    count: int
    loss: Tensor = field(init=False)
    gradient: Tensor = field(init=False)
    best_points: Tensor = field(init=False)
    best_gradient: Tensor = field(init=False)
    best_loss: Tensor = field(init=False)
    step_size: Tensor = field(init=False)

    first_step: ClassVar[float]  # as a multiple of eps

    def __post_init__(self) -> None:
        shape = (len(self.points), *[1] * (self.points.ndim - 1))
        self.step_size = torch.full(shape, self.first_step * self.eps, device=self.points.device)
        self.best_points = self.points

    def first(self, loss: Tensor, gradient: Tensor) -> None:
        """Begin with the loss and the gradient at the start."""
        self.loss = self.best_loss = loss
        self.gradient = self.best_gradient = gradient

    def move(self, number: int) -> Tensor:
        """Returns the point after step `number`, counted from 1. The point is in the ball and the box."""
        raise NotImplementedError

    def check(self, number: int) -> None:
        """Adapt the step size after step `number`, if a check is due."""
        raise NotImplementedError

    def note(self, loss: Tensor, gradient: Tensor) -> None:
        self.loss, self.gradient = loss, gradient
        better = loss > self.best_loss
        self.best_loss = torch.where(better, loss, self.best_loss)
        self.best_points = torch.where(wide(better, self.points), self.points, self.best_points)
        self.best_gradient = torch.where(wide(better, gradient), gradient, self.best_gradient)

    def return_to_best(self, chosen: Tensor) -> None:
        """Reset the chosen examples, a mask (N, 1, 1, 1), to their best point."""
        self.points = torch.where(chosen, self.best_points, self.points)
        self.gradient = torch.where(chosen, self.best_gradient, self.gradient)


def checkpoints(count: int) -> list[int]:
    """The steps after which the step size is checked: 22, 41, 57, 70, 80, 87, 93 and 99 for 100 steps.

    The paper defines p_1 = .22 and p_{j+1} = p_j + max(p_j - p_{j-1} - .03, .06). The differences between
    checkpoints are rounded down to integers, as in the authors' code.
    """
    gap, least, shrink = (max(int(share * count), 1) for share in (0.22, 0.06, 0.03))
    numbers: list[int] = []
    done = gap
    while done <= count:
        numbers.append(done)
        gap = max(gap - shrink, least)
        done += gap
    return numbers


def stalled(rises: Tensor, gap: int, halved: Tensor, best: Tensor, best_then: Tensor) -> Tensor:
    """A mask (N,) of the examples whose step size is halved at a checkpoint.

    Condition 1: at most a fraction RHO of the `gap` steps since the last checkpoint increased the loss.
    Condition 2: the step size was not halved at the last checkpoint and the best loss has not changed since.
    """
    return (rises <= RHO * gap) | (~halved & (best <= best_then))


@dataclass
class HalvingAscent(Ascent):
    """Steps in L-infinity or L2 with momentum; the step size is halved if the loss stalls (algorithm 1).

    `previous` is the point x^(k-1) before `point`. `rises` (N,) is the number of steps since the last
    checkpoint that increased the loss. `halved` (N,) is true if the last checkpoint halved the step size.
    `best_then` (N,) is the best loss at the last checkpoint.
    """

    previous: Tensor = field(init=False)
    rises: Tensor = field(init=False)
    halved: Tensor = field(init=False)
    best_then: Tensor = field(init=False)
    last_checkpoint: int = field(init=False, default=0)

    first_step = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.checkpoints, self.previous = checkpoints(self.count), self.points
        self.rises = torch.zeros_like(self.step_size).flatten()
        self.halved = torch.ones_like(self.rises, dtype=torch.bool)

    def first(self, loss: Tensor, gradient: Tensor) -> None:
        super().first(loss, gradient)
        self.best_then = loss

    def move(self, number: int) -> Tensor:
        """The step z = P(x + eta g) with momentum: P(x + alpha (z - x) + (1 - alpha) (x - x^(k-1)))."""
        x, previous, self.previous = self.points, self.previous, self.points
        z = steps.ascend(x, self.gradient, self.step_size, self.norm)
        z = ball.project(z, self.images, self.eps, self.norm)
        if number == 1:
            return z
        moved = x + ALPHA * (z - x) + (1 - ALPHA) * (x - previous)
        return ball.project(moved, self.images, self.eps, self.norm)

    def note(self, loss: Tensor, gradient: Tensor) -> None:
        self.rises = self.rises + (loss > self.loss)
        super().note(loss, gradient)

    def check(self, number: int) -> None:
        """At a checkpoint, halve the step size of stalled examples and reset them to their best points."""
        if number not in self.checkpoints:
            return
        gap = number - self.last_checkpoint
        self.halved = stalled(self.rises, gap, self.halved, self.best_loss, self.best_then)
        chosen = wide(self.halved, self.points)
        self.step_size = torch.where(chosen, self.step_size / 2, self.step_size)
        self.return_to_best(chosen)
        self.best_then, self.last_checkpoint = self.best_loss, number
        self.rises = torch.zeros_like(self.rises)


def radii(eps: float, count: int) -> list[tuple[float, int]]:
    """The radius and the number of steps for each ball. The radii 3 eps, 2 eps and eps get 30, 30 and 40 % of
    the steps. If there are fewer than four steps, the ball of radius eps gets all of them."""
    larger = 3 * count // 10
    balls = [(3 * eps, larger), (2 * eps, larger), (eps, count - 2 * larger)]
    return [(radius, number) for radius, number in balls if number]


def sparse_direction(gradient: Tensor, entries: Tensor) -> Tensor:
    """The signs of the `entries` (N,) largest entries of the gradient (N, C, H, W), scaled to L1 norm 1.
    Entries equal to the smallest of these are included, and all other entries are zero."""
    sizes = gradient.abs().flatten(1)
    last = entries.long().clamp(1, sizes.shape[1]) - 1
    least = sizes.sort(dim=1, descending=True).values.gather(1, last[:, None])
    signs = torch.where(sizes >= least, gradient.flatten(1).sign(), 0.0)
    return (signs / signs.abs().sum(1, keepdim=True).clamp_min(1)).view_as(gradient)


@dataclass
class SparseAscent(Ascent):
    """Steps in L1 along the largest entries of the gradient. The number of entries depends on the best point.

    The step size is adapted after every 4 % of the steps. If an example's best point has become sparser, the
    step size is reset to eps and the run continues from the best point. Otherwise the step size shrinks.
    `changed` (N,) is the number of changed entries of the best point at the last adaptation.
    """

    changed: Tensor = field(init=False)

    first_step = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.every = max(self.count // 25, 1)
        self.changed = self._changed_entries()

    def _changed_entries(self) -> Tensor:
        return (self.best_points != self.images).flatten(1).sum(1)

    def move(self, number: int) -> Tensor:
        entries = torch.ceil(self.changed / SPARSITY_RATIO)
        point = self.points + self.step_size * sparse_direction(self.gradient, entries)
        return ball.project(point, self.images, self.eps, self.norm)

    def check(self, number: int) -> None:
        if number % self.every:
            return
        changed = self._changed_entries()
        sparser = wide(changed < SPARSER * self.changed, self.points)
        shrunk = (self.step_size / SHRINK).clamp_min(LEAST_STEP * self.eps)
        self.step_size = torch.where(sparser, self.eps, shrunk)
        self.changed = changed
        self.return_to_best(sparser)
