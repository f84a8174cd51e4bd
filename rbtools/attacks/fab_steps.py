"""The iteration of FAB (Croce and Hein 2020, arXiv:1907.02044) along the decision boundary."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rbtools.attacks import active_batch, apgd, losses
from rbtools.attacks.active_examples import ActiveExamples, check_schedule, wide
from rbtools.attacks.target import differentiate
from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.target import Network


ALPHA_MAX = 0.1  # the largest weight of the projection of the image
ETA = 1.05  # overshoot factor of a step beyond the linearised boundary
BETA = 0.9  # the share of the offset from the image that is kept once a point is adversarial


@dataclass
class _FABState:
    images: Tensor
    labels: Tensor
    targets: Tensor
    point: Tensor


def fab(
    model: Network,
    batch: active_batch.AttackBatch,
    targets: Tensor | None,
    *,
    eps: float,
    norm: str,
    count: int,
    draw: int | None,
) -> tuple[Tensor, Tensor]:
    """`count` steps from the image, or from half way to the ball's border with `draw`.

    Returns images (N, C, H, W) in [0, 1] and which are broken (N,). eps is in pixel units of [0, 1]. An
    example is broken once a point within eps fools the model; others are returned
    unchanged. targets: the class (N,) whose boundary is followed, or None for the nearest of all classes.
    """
    loop, start = ActiveExamples(batch.images, batch.schedule), batch.images
    if draw is not None:
        border = apgd.border_start(batch.images, batch.draws, eps, norm, draw)
        start = batch.images + (border - batch.images) / 2
    state = _FABState(
        images=batch.images,
        labels=batch.labels,
        targets=batch.labels if targets is None else targets,
        point=start,
    )
    for number in range(count):
        if targets is None:
            find = functools.partial(_nearest_boundary, model, state, norm)
        else:
            find = functools.partial(_boundary, model, state)
        value, normal = model.in_chunks(len(loop), find)
        state.point = _step(state, value.to(normal), normal, norm)
        logits = model.logits(state.point)
        over = logits.argmax(1) != state.labels
        if loop.schedule.each_step and not over.any():
            continue
        points, offset = state.point, state.point - state.images
        near = over & (length(offset, norm) <= eps)
        if loop.schedule.each_step:
            near[near.clone()] = ~model.still_correct(points[near], state.labels[near], logits[near])
        state.point = torch.where(wide(over, offset), state.images + BETA * offset, state.point)
        for on in (loop.mark_broken(near, points), loop.compact(number)):
            if on is not None:
                active_batch.keep_rows(state, on)
        if not len(loop):
            break
    return loop.finish()


def length(vectors: Tensor, norm: str) -> Tensor:
    """The norm of each example (N,)."""
    flat = vectors.flatten(1)
    if norm == "linf":
        return flat.abs().amax(1)
    return flat.abs().sum(1) if norm == "l1" else torch.linalg.vector_norm(flat, dim=1)


def _step(state: _FABState, value: Tensor, normal: Tensor, norm: str) -> Tensor:
    """The next point: between the projections of the current point and of the image onto the boundary."""
    here, image, normal = state.point.flatten(1), state.images.flatten(1), normal.flatten(1)
    from_image = value + (normal * (image - here)).sum(1)
    both = shortest_way(
        torch.cat((here, image)), torch.cat((normal, normal)), torch.cat((value, from_image)), norm
    )
    ways = both[: len(here)], both[len(here) :]
    near, far = (length(way, norm).clamp_min(1e-8) for way in ways)
    alpha = (near / (near + far)).clamp_max(ALPHA_MAX)[:, None]
    moved = (1 - alpha) * (here + ETA * ways[0]) + alpha * (image + ETA * ways[1])
    return moved.clamp_(0, 1).view_as(state.point)


def _boundary(model: Network, state: _FABState, rows: slice) -> tuple[Tensor, Tensor]:
    """z_t - z_y (N,) and its gradient (N, C, H, W), of some of the examples."""
    goal = losses.AttackObjective(losses.targeted_margin, state.labels[rows], state.targets[rows])
    with torch.enable_grad():
        inputs = state.point[rows].detach().requires_grad_(True)
        logits = model.logits(inputs)
    return differentiate(model, inputs, logits, goal)


def _nearest_boundary(model: Network, state: _FABState, norm: str, rows: slice) -> tuple[Tensor, Tensor]:
    """The same for the wrong class whose linearised boundary is nearest."""
    labels = state.labels[rows]
    with torch.enable_grad():
        inputs = state.point[rows].detach().requires_grad_(True)
        logits = model.logits(inputs)
    least = torch.full_like(logits[:, 0].detach(), torch.inf)
    value, normal = torch.zeros_like(least), torch.zeros_like(inputs).detach()
    dual = {"linf": 1, "l2": 2, "l1": torch.inf}[norm]
    for kind in range(logits.shape[1]):
        goal = losses.AttackObjective(losses.targeted_margin, labels, torch.full_like(labels, kind))
        one, slope = differentiate(model, inputs, logits, goal, again=True)
        away = one.abs() / (torch.linalg.vector_norm(slope.flatten(1), ord=dual, dim=1) + 1e-12)
        nearer = (away < least) & (labels != kind)
        least = torch.where(nearer, away, least)
        value = torch.where(nearer, one, value)
        normal = torch.where(nearer.view(-1, *[1] * (normal.ndim - 1)), slope, normal)
    return value, normal


_ROUNDS = 50
# Where to see whether all have arrived would make a GPU wait. Rows that have stay; others go on with the
# next step of the attack.
_ROUNDS_UNCHECKED = 16


def shortest_way(points: Tensor, normal: Tensor, value: Tensor, norm: str) -> Tensor:
    """The smallest move d in `norm` with value + <normal, d> = 0 and points + d in [0, 1].

    If the box does not reach the hyperplane, every coordinate goes to the border. Coordinates whose normal is
    zero stay.

    Shape: points and normal (N, d), value (N,); the result is (N, d).

    A coordinate moves by min(t * speed, room) in the direction that lowers |value|; speed is 1 in linf and
    |normal| in l2. The change of the value is concave and piecewise linear in t, so Newton's method from t =
    0 approaches from below and reaches the solution after as many rounds as t crosses kinks. In l1 the
    coordinates with the largest |normal| move to the border one after another, the last of them part of the
    way.
    """
    slope = normal.abs()
    direction = normal.sign().mul_(-value.sign()[:, None])
    room = 0.5 - direction * (
        points - 0.5
    )  # distance to the border of the box; comparisons would cost three times as much
    if norm == "l1":
        return direction.mul_(_steepest_first(slope, room, value.abs()))
    speed = slope if norm == "l2" else None
    rate = slope if speed is None else slope.square()
    wanted = value.abs()
    t = torch.zeros_like(wanted)
    gain, pace, move = t, rate.sum(1), torch.zeros_like(room)
    each_step = check_schedule(points.device).each_step
    for _ in range(_ROUNDS if each_step else _ROUNDS_UNCHECKED):
        short = wanted - gain
        ahead = (short > 1e-6 * wanted) & (pace > 0)
        if each_step and not ahead.any():
            break
        t = torch.where(ahead, t + short / pace.clamp_min(torch.finfo(pace.dtype).tiny), t)
        reach = t[:, None] if speed is None else t[:, None] * speed
        move = torch.minimum(room, reach)
        gain = (slope * move).sum(1)
        pace = torch.where(room > reach, rate, 0.0).sum(1)
    return direction.mul_(move)


def _steepest_first(slope: Tensor, room: Tensor, wanted: Tensor) -> Tensor:
    """How far each coordinate moves (N, d) so that slope times move adds up to `wanted` (N,), in the least
    L1 norm."""
    slopes, order = slope.sort(dim=1, descending=True)
    rooms = room.gather(1, order)
    gains = slopes * rooms
    missing = wanted[:, None] - (gains.cumsum(1) - gains)
    moves = torch.where(slopes > 0, missing / slopes, 0.0).clamp_min_(0).minimum(rooms)
    return torch.zeros_like(moves).scatter_(1, order, moves)
