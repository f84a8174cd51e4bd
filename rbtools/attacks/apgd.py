"""Auto-PGD (Croce and Hein 2020, arXiv:2003.01690): momentum and an adaptive step size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rbtools.attacks import active_batch, steps
from rbtools.attacks.losses import AttackObjective
from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


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
class _APGDState:
    """The state of the examples that are not broken, one row each."""

    row: Tensor
    images: Tensor
    goal: AttackObjective
    point: Tensor
    previous: Tensor
    gradient: Tensor
    loss: Tensor
    best_point: Tensor
    best_gradient: Tensor
    best: Tensor
    step: Tensor
    rose: Tensor
    halved: Tensor
    best_then: Tensor


def apgd(
    model: steps.Model,
    batch: active_batch.AttackBatch,
    goal: AttackObjective,
    *,
    eps: float,
    norm: str,
    count: int,
    draw: int,
    passes: int = 1,
) -> tuple[Tensor, Tensor]:
    """`count` steps from a random start: images (N, C, H, W) in [0, 1], and which are broken (N,).

    eps is in pixel units of [0, 1]. Any iterate that fools the model breaks its example, which is then
    dropped; unbroken examples are returned unchanged. `draw` numbers the random start; `passes`: see
    `active_batch.loss_and_gradient`.
    """
    result = batch.images.clone()
    start = border_start(batch.images, batch.draws, eps, norm, draw)
    seen = active_batch.loss_and_gradient(model, start, goal, passes=passes)
    broken = ~seen.still_correct
    result[broken] = start[broken]
    state = _start(batch.images, start, goal, seen, eps)
    marks, last_mark = checkpoints(count), 0
    for number in range(1, count + 1):
        if not len(state.row):
            break
        point = _move(state, eps, norm, first=number == 1)
        if number == count:  # the last iterate needs no gradient
            fooled = active_batch.misclassified(model, point, state.goal.labels, passes=passes)
            result[state.row[fooled]], broken[state.row[fooled]] = point[fooled], True
            break
        seen = active_batch.loss_and_gradient(model, point, state.goal, passes=passes)
        fooled = ~seen.still_correct
        state.previous, state.point = state.point, point
        if fooled.any():
            result[state.row[fooled]], broken[state.row[fooled]] = point[fooled], True
            active_batch.keep_rows(state, seen.still_correct)
        _note(state, seen)
        if number in marks:
            _check(state, number - last_mark)
            last_mark = number
    return result, broken


def border_start(images: Tensor, draws: object, eps: float, norm: str, draw: int) -> Tensor:
    """A random point on the border of the ball, shaped as `images` (N, C, H, W), in [0, 1].

    A uniform offset, its largest entry stretched to eps (linf), or a uniform direction of length eps (l2), in
    pixel units; then clipped to the box.
    """
    shape = tuple(images.shape[1:])
    if norm == "linf":
        offset = draws.uniform(shape, draw=draw).to(images) * 2 - 1  # type: ignore[attr-defined]
        largest = offset.abs().amax(dim=tuple(range(1, images.ndim)), keepdim=True)
        offset = offset / largest.clamp_min(torch.finfo(offset.dtype).tiny)
    else:
        offset = steps.unit(draws.normal(shape, draw=draw).to(images))  # type: ignore[attr-defined]
    return steps.project(images + eps * offset, images, eps, norm)


def _start(
    images: Tensor, start: Tensor, goal: AttackObjective, seen: active_batch.Evaluated, eps: float
) -> _APGDState:
    on, loss, gradient = seen.still_correct, seen.loss, seen.gradient
    point = start[on]
    return _APGDState(
        row=on.nonzero()[:, 0],
        images=images[on],
        goal=goal.take(on),
        point=point,
        previous=point,
        gradient=gradient,
        loss=loss,
        best_point=point,
        best_gradient=gradient,
        best=loss,
        step=torch.full((len(point), *[1] * (point.ndim - 1)), 2 * eps, device=point.device),
        rose=torch.zeros_like(loss),
        halved=torch.ones_like(loss, dtype=torch.bool),
        best_then=loss,
    )


def _move(state: _APGDState, eps: float, norm: str, first: bool) -> Tensor:
    """The next iterate: a projected step, then momentum, then projected again."""
    stepped = steps.ascend(state.point, state.gradient, state.step, norm)
    stepped = steps.project(stepped, state.images, eps, norm)
    if first:
        return stepped
    moved = state.point + MOMENTUM * (stepped - state.point)
    moved += (1 - MOMENTUM) * (state.point - state.previous)
    return steps.project(moved, state.images, eps, norm)


def _note(state: _APGDState, seen: active_batch.Evaluated) -> None:
    """Update the state with the loss and gradient at the new point."""
    state.rose = state.rose + (seen.loss > state.loss)
    state.loss, state.gradient = seen.loss, seen.gradient
    better = seen.loss > state.best
    state.best = torch.where(better, seen.loss, state.best)
    wide = better.view(-1, *[1] * (state.point.ndim - 1))
    state.best_point = torch.where(wide, state.point, state.best_point)
    state.best_gradient = torch.where(wide, state.gradient, state.best_gradient)


def _check(state: _APGDState, gap: int) -> None:
    """At a checkpoint, halve the step of the examples that stalled and reset them to their best point."""
    stall = stalled(state.rose, gap, state.halved, state.best, state.best_then)
    wide = stall.view(-1, *[1] * (state.point.ndim - 1))
    state.step = torch.where(wide, state.step / 2, state.step)
    state.point = torch.where(wide, state.best_point, state.point)
    state.gradient = torch.where(wide, state.best_gradient, state.gradient)
    state.halved, state.best_then = stall, state.best
    state.rose = torch.zeros_like(state.rose)
