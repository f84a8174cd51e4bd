"""The loop of attacks that search for the nearest adversarial example, each step by its own rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rbtools.attacks import active_batch, steps
from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.losses import AttackObjective
    from rbtools.attacks.steps import Model

    # From the search, the objective's gradient (N, C, H, W) and value (N,) at its points, and the number of
    # the step to the next points.
    Move = Callable[["Search", Tensor, Tensor, int], Tensor]

_ORDER = {"linf": math.inf, "l2": 2}


@dataclass
class Search:
    """points: (N, C, H, W), where the search is; length: (N,), how far they are from their images;
    adversarial: bool (N,), whether they fool the model; nearest: the nearest points so far that do, and
    distance: (N,), how far they are (infinity without one).
    """

    images: Tensor
    points: Tensor
    length: Tensor
    adversarial: Tensor
    nearest: Tensor
    distance: Tensor


def nearest(
    model: Model, images: Tensor, objective: AttackObjective, norm: str, count: int, move: Move
) -> Search:
    """Run `count` steps from the images, and look at the last points too. Clean errors have distance 0."""
    unknown = torch.full_like(images.flatten(1)[:, 0], torch.inf)
    search = Search(
        images, images.clone(), torch.zeros_like(unknown), unknown.isnan(), images.clone(), unknown
    )
    for number in range(count):
        find = _Gradient(model, search.points, objective)
        logits, value, gradient = active_batch.in_chunks(model, len(images), find)
        _look(model, search, logits, objective.labels)
        search.points = move(search, gradient, value, number)
        change = (search.points - images).flatten(1)
        search.length = torch.linalg.vector_norm(change, ord=_ORDER[norm], dim=1)
    with torch.no_grad():
        _look(model, search, steps.logits_of(model, search.points), objective.labels)
    return search


def within(search: Search, images: Tensor, eps: float) -> Tensor:
    """The nearest adversarial examples at most eps away; elsewhere the images."""
    near = (search.distance <= eps).view(-1, 1, 1, 1)
    return torch.where(near, search.nearest, images)


def cosine(first: float, last: float, number: int, count: int) -> float:
    """From `first` to `last` along half a cosine, at step `number` of `count`."""
    return last + (first - last) * (1 + math.cos(math.pi * number / count)) / 2


@dataclass
class _Gradient:
    """The logits, the objective and its gradient at some of the points."""

    model: Model
    points: Tensor
    objective: AttackObjective

    def __call__(self, rows: slice) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            points = self.points[rows].detach().requires_grad_(True)
            logits = steps.logits_of(self.model, points)
        return logits.detach(), *steps.differentiate(self.model, points, logits, self.objective.take(rows))


def _look(model: Model, search: Search, logits: Tensor, labels: Tensor) -> None:
    """Keep the points that fool the model and are nearer than those before."""
    search.adversarial = steps.fooled(model, search.points, logits, labels)
    nearer = search.adversarial & (search.length < search.distance)
    search.nearest[nearer] = search.points[nearer]
    search.distance = torch.where(nearer, search.length, search.distance)
