"""Auto-PGD (Croce and Hein 2020, arXiv:2003.01690): momentum and an adaptive step size.

In L1 the steps are those of l1-APGD (`apgd_l1`).
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rbtools.attacks import active_batch, apgd_ascent, apgd_l1, steps
from rbtools.attacks.losses import AttackObjective
from rbtools.attacks.target import Mean
from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.target import Network


MOMENTUM = 0.75  # weight of the new step relative to the last move
RHO = 0.75  # share of the steps since the last checkpoint that must have raised the loss


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
class HalvingAscent(apgd_ascent.Ascent):
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
        wide = stall.view(-1, *[1] * (self.point.ndim - 1))
        self.step = torch.where(wide, self.step / 2, self.step)
        self.return_to_best(wide)
        self.halved, self.best_then, self.last_mark = stall, self.best, number
        self.rose = torch.zeros_like(self.rose)


def apgd(
    model: Network,
    batch: active_batch.AttackBatch,
    goal: AttackObjective,
    *,
    eps: float,
    norm: str,
    count: int,
    draw: int,
    passes: int = 1,
    keep_best: bool = False,
) -> tuple[Tensor, Tensor]:
    """`count` steps from a random start: images (N, C, H, W) in [0, 1], and which are broken (N,).

    eps is in pixel units of [0, 1]. Any iterate that fools the model breaks its example, which is then
    dropped; unbroken examples are returned unchanged, or with `keep_best` as their points of largest loss.
    `draw` numbers the random start; `passes`: of a randomised model, whose mean counts.

    In L1 the first steps are within larger balls, and nothing they reach
    counts; the last ball's start is the projection of their best point.
    """
    model = Mean(model, passes) if passes > 1 else model
    radii = apgd_l1.radii(eps, count) if norm == "l1" else [(eps, count)]
    start = border_start(batch.images, batch.draws, radii[0][0], norm, draw)
    for (radius, number), (smaller, _) in itertools.pairwise(radii):
        new = _new(radius, norm, number)
        best = apgd_ascent.highest(model, batch, goal, start, new, number)
        start = steps.project(best, batch.images, smaller, norm)
    last = radii[-1][1]
    new = _new(eps, norm, last)
    return apgd_ascent.until_broken(model, batch, goal, start, new, last, keep_best=keep_best)


def _new(eps: float, norm: str, count: int) -> apgd_ascent.NewAscent:
    """The step rule of a norm for a run of `count` steps."""
    if norm == "l1":
        return functools.partial(apgd_l1.SparseAscent, eps=eps, every=apgd_l1.check_every(count))
    return functools.partial(HalvingAscent, eps=eps, norm=norm, marks=checkpoints(count))


def border_start(images: Tensor, draws: object, eps: float, norm: str, draw: int) -> Tensor:
    """A random point on the border of the ball, shaped as `images` (N, C, H, W), in [0, 1].

    A uniform offset, its largest entry stretched to eps (linf), or a uniform direction of length eps (l2), in
    pixel units; then clipped to the box. l1: a standard normal offset, projected onto ball and box.
    """
    shape = tuple(images.shape[1:])
    if norm == "linf":
        offset = draws.uniform(shape, draw=draw).to(images) * 2 - 1  # type: ignore[attr-defined]
        largest = offset.abs().amax(dim=tuple(range(1, images.ndim)), keepdim=True)
        offset = offset / largest.clamp_min(torch.finfo(offset.dtype).tiny)
        return steps.project(images + eps * offset, images, eps, norm)
    offset = draws.normal(shape, draw=draw).to(images)  # type: ignore[attr-defined]
    reach = offset if norm == "l1" else eps * steps.unit(offset)
    return steps.project(images + reach, images, eps, norm)
