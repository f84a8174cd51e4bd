"""Auto-PGD (Croce and Hein 2020, arXiv:2003.01690): momentum and an adaptive step size.

In L1 the steps are those of l1-APGD (Croce and Hein 2021, arXiv:2103.01208), in the L1 ball and the box.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rbtools.attacks import steps
from rbtools.attacks.active_examples import ActiveExamples, AttackBatch, ExampleRows, wide
from rbtools.attacks.losses import AttackObjective
from rbtools.attacks.replays import Replays
from rbtools.attacks.target import Network
from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.rng.draws import Draws

    # Takes images, objective, start, and the loss and gradient there; returns the state of a run.
    NewAscent = Callable[[Tensor, AttackObjective, Tensor, Tensor, Tensor], "Ascent"]

MOMENTUM = 0.75  # weight of the new step relative to the last move
RHO = 0.75  # share of the steps since the last checkpoint that must have raised the loss
RADII = (3, 2, 1)  # l1: the radii of the balls in turn, as multiples of eps
LARGER_SHARE = 3  # tenths of the steps in each of the larger balls
SPARSER = 0.95  # the share of the changed pixels below which the change has become sparser
SPARSITY_RATIO = 1.5  # changed pixels of the best point for each entry of the gradient that a step follows
SHRINK, LEAST_STEP = 1.5, 0.1  # the divisor of the step size, and its least value as a share of eps


def apgd(
    model: Network,
    batch: AttackBatch,
    goal: AttackObjective,
    *,
    eps: float,
    norm: str,
    count: int,
    draw: int,
    keep_best: bool = False,
) -> tuple[Tensor, Tensor]:
    """`count` steps from a random start: images (N, C, H, W) in [0, 1], and which are broken (N,).

    eps is in pixel units of [0, 1]. Any iterate that fools the model breaks its example, which is then
    dropped; unbroken examples are returned unchanged, or with `keep_best` as the points of largest loss
    before the last iterate. `draw` numbers the random start. In L1 the first steps are in larger balls, and
    their points break no example; the steps in the last ball start from the projection of the best one.
    """
    balls = radii(eps, count) if norm == "l1" else [(eps, count)]
    start = border_start(batch.images, batch.draws, balls[0][0], norm, draw)
    for (radius, number), (smaller, _) in itertools.pairwise(balls):
        best = _highest(model, batch, goal, start, _new(radius, norm, number), number)
        start = steps.project(best, batch.images, smaller, norm)
    last = balls[-1][1]
    return _until_broken(model, batch, goal, start, _new(eps, norm, last), last, keep_best=keep_best)


def _new(eps: float, norm: str, count: int) -> NewAscent:
    """The step rule of a norm for a run of `count` steps."""
    if norm == "l1":
        return functools.partial(SparseAscent, eps=eps, every=check_every(count))
    return functools.partial(HalvingAscent, eps=eps, norm=norm, marks=checkpoints(count))


def _until_broken(
    model: Network,
    batch: AttackBatch,
    goal: AttackObjective,
    start: Tensor,
    new: NewAscent,
    count: int,
    *,
    keep_best: bool,
) -> tuple[Tensor, Tensor]:
    """`count` steps; an example is dropped at the first point that fools the model."""
    active, everyone = ActiveExamples(batch), not batch.schedule.each_step
    seen = model.loss_and_gradient(start, goal, everyone=everyone)
    broken = ~seen.still_correct
    seen, images, goal, start, model = active.update(
        -1, broken, start, seen, batch.images, goal, start, model
    )
    state = new(images, goal, start, seen.loss, seen.gradient)

    def step() -> None:
        nonlocal state, model
        state.point = state.move(number)
        seen = model.loss_and_gradient(state.point, state.goal, everyone=everyone)
        seen, state, model = active.update(-1, ~seen.still_correct, state.point, seen, state, model)
        state.note(seen.loss, seen.gradient)

    make_step = Replays(model, state, step, active)
    for number in range(1, count):
        if not len(active):
            break
        make_step()
        state.check(number)
        state, model = active.check(number, state, model)
    if len(active):  # no gradient at the last iterate: no step follows
        point = state.move(count)
        active.update(-1, ~model.still_correct(point, state.goal.labels), point, state)
    return active.finish(state.best_point if keep_best else None)


def _highest(
    model: Network, batch: AttackBatch, goal: AttackObjective, start: Tensor, new: NewAscent, count: int
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


def border_start(images: Tensor, draws: Draws, eps: float, norm: str, draw: int) -> Tensor:
    """A random point on the border of the ball, shaped as `images` (N, C, H, W), in [0, 1].

    A uniform offset, its largest entry stretched to eps (linf), or a uniform direction of length eps (l2), in
    pixel units; then clipped to the box. l1: a standard normal offset, projected onto ball and box.
    """
    shape = tuple(images.shape[1:])
    if norm == "linf":
        offset = draws.uniform(shape, draw=draw).to(images) * 2 - 1
        largest = offset.abs().amax(dim=tuple(range(1, images.ndim)), keepdim=True)
        offset = offset / largest.clamp_min(torch.finfo(offset.dtype).tiny)
        return steps.project(images + eps * offset, images, eps, norm)
    offset = draws.normal(shape, draw=draw).to(images)
    reach = offset if norm == "l1" else eps * steps.unit(offset)
    return steps.project(images + reach, images, eps, norm)


@dataclass
class Ascent(ExampleRows):
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
        self.best_point = torch.where(wide(better, self.point), self.point, self.best_point)
        self.best_gradient = torch.where(wide(better, gradient), gradient, self.best_gradient)

    def return_to_best(self, chosen: Tensor) -> None:
        """Reset the chosen examples, bool (N, 1, 1, 1), to their best point."""
        self.point = torch.where(chosen, self.best_point, self.point)
        self.gradient = torch.where(chosen, self.best_gradient, self.gradient)


def checkpoints(count: int) -> list[int]:
    """The steps, of `count`, after which the step size is checked: 22, 41, 57, 70, 80, 87, 93, 99 of 100.

    The paper's p_1 = .22, p_{j+1} = p_j + max(p_j - p_{j-1} - .03, .06), with the gaps rounded down
    as in the authors' code.
    """
    gap, least, shrink = (max(int(share * count), 1) for share in (0.22, 0.06, 0.03))
    numbers: list[int] = []
    done = gap
    while done <= count:
        numbers.append(done)
        gap = max(gap - shrink, least)
        done += gap
    return numbers


def stalled(rose: Tensor, gap: int, halved: Tensor, best: Tensor, best_then: Tensor) -> Tensor:
    """The examples whose step is halved at a checkpoint (N,).

    Condition 1: the loss rose in no more than RHO of the `gap` steps since the last one. Condition 2:
    the step was not halved there and the best loss has not changed since.
    """
    return (rose <= RHO * gap) | (~halved & (best <= best_then))


@dataclass
class HalvingAscent(Ascent):
    """Steps in L-infinity or L2 with momentum, of a size that is halved where the loss stalls (algorithm 1).

    eps: in pixel units of [0, 1]; marks: the steps after which the size is checked.
    """

    eps: float
    norm: str
    marks: list[int]
    previous: Tensor = field(init=False)
    step: Tensor = field(init=False)
    rose: Tensor = field(init=False)
    halved: Tensor = field(init=False)
    best_then: Tensor = field(init=False)
    last_mark: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.previous, self.best_then = self.point, self.loss
        shape = (len(self.point), *[1] * (self.point.ndim - 1))
        self.step = torch.full(shape, 2 * self.eps, device=self.point.device)
        self.rose = torch.zeros_like(self.loss)
        self.halved = torch.ones_like(self.loss, dtype=torch.bool)

    def move(self, number: int) -> Tensor:
        """A projected step, then momentum (but for the first), then projected again."""
        point = steps.ascend(self.point, self.gradient, self.step, self.norm)
        point = steps.project(point, self.images, self.eps, self.norm)
        if number > 1:
            moved = self.point + MOMENTUM * (point - self.point)
            moved += (1 - MOMENTUM) * (self.point - self.previous)
            point = steps.project(moved, self.images, self.eps, self.norm)
        self.previous = self.point
        return point

    def note(self, loss: Tensor, gradient: Tensor) -> None:
        self.rose = self.rose + (loss > self.loss)
        super().note(loss, gradient)

    def check(self, number: int) -> None:
        """At a checkpoint, halve the step of the examples that stalled and reset them to their best point."""
        if number not in self.marks:
            return
        stall = stalled(self.rose, number - self.last_mark, self.halved, self.best, self.best_then)
        stall_wide = wide(stall, self.point)
        self.step = torch.where(stall_wide, self.step / 2, self.step)
        self.return_to_best(stall_wide)
        self.halved, self.best_then, self.last_mark = stall, self.best, number
        self.rose = torch.zeros_like(self.rose)


def radii(eps: float, count: int) -> list[tuple[float, int]]:
    """The radii and numbers of steps of the balls in turn: 3 eps, 2 eps and eps with .3, .3 and .4 of all.

    With fewer than four steps all are in the last ball.
    """
    larger = count * LARGER_SHARE // 10
    numbers = (larger, larger, count - 2 * larger)
    return [(times * eps, number) for times, number in zip(RADII, numbers, strict=True) if number]


def check_every(count: int) -> int:
    """After how many of `count` steps the sparsity and the step size are adapted."""
    return max(count // 25, 1)


def sparse_direction(gradient: Tensor, entries: Tensor) -> Tensor:
    """The signs of the largest `entries` (N,) of the gradient, of L1 norm 1; zeros stay zeros.

    Entries as large as the smallest of them count too. Shape: gradient (N, C, H, W); the result as gradient.
    """
    sizes = gradient.abs().flatten(1)
    last = entries.long().clamp(1, sizes.shape[1]) - 1
    least = sizes.sort(dim=1, descending=True).values.gather(1, last[:, None])
    signs = torch.where(sizes >= least, gradient.flatten(1).sign(), 0.0)
    return (signs / signs.abs().sum(1, keepdim=True).clamp_min(1)).view_as(gradient)


@dataclass
class SparseAscent(Ascent):
    """Steps along the largest entries of the gradient, as many as the best change so far suggests.

    Where that change has become sparser, the step is eps again and goes on from the best point; elsewhere it
    shrinks. eps: in pixel units of [0, 1]; every: after how many steps that is decided.
    """

    eps: float
    every: int
    step: Tensor = field(init=False)
    changed: Tensor = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.step = torch.full((len(self.point), 1, 1, 1), self.eps, device=self.point.device)
        self.changed = self._changed_entries()

    def _changed_entries(self) -> Tensor:
        """How many entries of the best point differ from the image (N,)."""
        return (self.best_point != self.images).flatten(1).sum(1)

    def move(self, number: int) -> Tensor:
        entries = torch.ceil(self.changed / SPARSITY_RATIO)
        point = self.point + self.step * sparse_direction(self.gradient, entries)
        return steps.project(point, self.images, self.eps, "l1")

    def check(self, number: int) -> None:
        if number % self.every:
            return
        changed = self._changed_entries()
        sparser = (changed < SPARSER * self.changed).view(-1, 1, 1, 1)
        shrunk = (self.step / SHRINK).clamp_min(LEAST_STEP * self.eps)
        self.step = torch.where(sparser, self.eps, shrunk)
        self.changed = changed
        self.return_to_best(sparser)
