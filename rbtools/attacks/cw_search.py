"""The search of Carlini and Wagner (2017, arXiv:1608.04644) for the nearest adversarial example in L2."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rbtools.attacks import active_batch, losses
from rbtools.attacks.active_examples import check_schedule, wide
from rbtools.attacks.target import need_constant
from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.target import Network


BETAS = (0.9, 0.999)
ADAM_EPS = 1e-8
INSIDE = 1 - 1e-6  # moves the start off the border of the box, where tanh has no inverse
NO_BETTER = 0.9999  # an example stops unless a tenth of the steps reduces its loss below this share


@dataclass
class _CWState:
    """The state of the examples that have not stopped, one row each."""

    row: Tensor
    images: Tensor
    goal: losses.AttackObjective
    c: Tensor
    w: Tensor
    mean: Tensor
    square: Tensor
    then: Tensor
    going: Tensor


def cw_search(
    model: Network,
    images: Tensor,
    labels: Tensor,
    *,
    count: int,
    searches: int,
    c: float,
    rate: float,
    kappa: float,
) -> tuple[Tensor, Tensor]:
    """(the nearest adversarial example (N, C, H, W), its distance (N,)); the image and infinity if none."""
    best, distance = images.clone(), torch.full_like(images.flatten(1)[:, 0], torch.inf)
    clean_wrong = ~model.still_correct(images, labels)
    distance[clean_wrong] = 0.0
    left = (~clean_wrong).nonzero()[:, 0]
    low, high = torch.zeros_like(distance), torch.full_like(distance, torch.inf)
    weight = torch.full_like(distance, c)
    for _ in range(searches):
        if not len(left):
            break
        nearest, size = _descend(model, images[left], labels[left], weight[left], count, rate, kappa)
        nearer = size < distance[left]
        best[left[nearer]], distance[left[nearer]] = nearest[nearer], size[nearer]
        done = size < torch.inf
        high[left] = torch.where(done, weight[left].minimum(high[left]), high[left])
        low[left] = torch.where(done, low[left], weight[left].maximum(low[left]))
        middle = (low + high) / 2
        weight = torch.where(high < torch.inf, middle, weight * 10)
    return best, distance


def _descend(
    model: Network, images: Tensor, labels: Tensor, c: Tensor, count: int, rate: float, kappa: float
) -> tuple[Tensor, Tensor]:
    """One run of Adam: (nearest fooling point, its distance); infinity if no point fools the model."""
    nearest, distance = images.clone(), torch.full_like(c, torch.inf)
    w = torch.atanh((2 * images - 1) * INSIDE)
    goal = losses.AttackObjective(losses.margin, labels, labels)
    state = _CWState(
        row=torch.arange(len(images), device=images.device),
        images=images,
        goal=goal,
        c=c,
        w=w,
        mean=torch.zeros_like(w),
        square=torch.zeros_like(w),
        then=torch.full_like(c, torch.inf),
        going=torch.ones_like(c, dtype=torch.bool),
    )
    schedule = check_schedule(images.device)
    for number in range(1, count + 1):
        find = functools.partial(_value, model, state, kappa)
        logits, total, gap, size, gradient = model.in_chunks(len(state.row), find)
        good = (gap >= kappa if kappa > 0 else gap > 0) & (size < distance[state.row]) & state.going
        point = (torch.tanh(state.w) + 1) / 2
        if schedule.each_step:
            if good.any():
                good[good.clone()] = ~model.still_correct(point[good], state.goal.labels[good], logits[good])
            nearest[state.row[good]], distance[state.row[good]] = point[good], size[good]
        else:
            good &= ~model.still_correct(point, state.goal.labels, logits)
            nearest[state.row] = torch.where(wide(good, point), point, nearest[state.row])
            distance[state.row] = torch.where(good, size, distance[state.row])
        _adam(state, gradient, number, rate)
        checks = number % max(count // 10, 1) == 0
        if checks:
            state.going = state.going & (total <= NO_BETTER * state.then)
            state.then = total
        if checks if schedule.each_step else schedule.due(number):
            active_batch.keep_rows(state, state.going.nonzero()[:, 0])
            if not len(state.row):
                break
    return nearest, distance


def _value(model: Network, state: _CWState, kappa: float, rows: slice) -> tuple[Tensor, ...]:
    """(logits (N, K), objective (N,), margin (N,), distance (N,), gradient with respect to w), of `rows`."""
    with torch.enable_grad():
        w = state.w[rows].detach().requires_grad_(True)
        point = (torch.tanh(w) + 1) / 2
        logits = model.logits(point)
        if not logits.requires_grad:
            need_constant(model, point, logits)
        gap = state.goal.take(rows)(logits)
        squared = (point - state.images[rows]).square().flatten(1).sum(1)
        total = squared + state.c[rows] * (-gap).clamp_min(-kappa)
        (gradient,) = torch.autograd.grad(total.sum(), w)
    return logits.detach(), total.detach(), gap.detach(), squared.detach().sqrt(), gradient


def _adam(state: _CWState, gradient: Tensor, number: int, rate: float) -> None:
    """One step of Adam, in every coordinate independently."""
    first, second = BETAS
    state.mean = first * state.mean + (1 - first) * gradient
    state.square = second * state.square + (1 - second) * gradient.square()
    mean, square = state.mean / (1 - first**number), state.square / (1 - second**number)
    state.w = state.w - rate * mean / (square.sqrt() + ADAM_EPS)
