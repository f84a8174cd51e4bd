"""Base class of attacks that search for the nearest adversarial example, and the loop of FMN and DDN."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks.active_examples import check_schedule, wide
from rbtools.attacks.base import SequentialAttack
from rbtools.attacks.oracle import Oracle, oracle_of
from rbtools.attacks.partial_results import continued, keep
from rbtools.lazy import torch
from rbtools.threats.ball import distances

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.losses import AttackObjective
    from rbtools.rng.draws import Draws

    # Maps the search, the objective's gradient (N, C, H, W) and value (N,) at its points, and the number of
    # the step to the next points.
    Move = Callable[["Search", Tensor, Tensor, int], Tensor]


class MinimalNormAttack(SequentialAttack):
    """An attack whose search does not depend on eps. A point counts as a success if its distance is at most
    eps. `run` also returns the distances as "distance" (N,), which are infinite if no adversarial example
    was found."""

    random: ClassVar[bool] = False
    minimal: ClassVar[bool] = True
    precise: ClassVar[bool] = True

    def search(self, model: Oracle, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Find the nearest adversarial examples (N, C, H, W) and their distances (N,), without autograd."""
        raise NotImplementedError

    def run(
        self, model: Oracle, images: Tensor, labels: Tensor, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if self.eps == 0 or len(images) == 0:
            return images.clone(), {}
        with torch.no_grad():
            points, distance = self._confirmed(oracle_of(model), images, labels)
            if self.eps is not None:
                points = torch.where(wide(distance <= self.eps, points), points, images)
            return points, {"distance": distance}

    def _confirmed(self, model: Oracle, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the result of `search`. On a GPU, the search uses the fast copy of the model, and the exact
        model checks the points at the end. For points that do not fool the exact model, the search is
        repeated with checks by the exact model in every step."""
        alone = check_schedule(images.device).unconfirmed(model)
        if alone is None:
            return self.search(model, images, labels)
        points, distance = self.search(alone, images, labels)
        rows = distance.isfinite().nonzero()[:, 0]
        doubtful = rows[model.take(rows).verdict(points[rows], labels[rows])] if len(rows) else rows
        if len(doubtful):
            points[doubtful], distance[doubtful] = self.search(
                model.take(doubtful), images[doubtful], labels[doubtful]
            )
        return points, distance


@dataclass
class Search:
    """The current points (N, C, H, W), their distances `length` (N,) from the images, and whether they are
    adversarial (N,). `nearest` (N, C, H, W) are the nearest adversarial points so far, and `distance` (N,)
    are their distances (infinite if no point was found). `radius` (N, 1, 1, 1) is used by the attack."""

    images: Tensor
    points: Tensor
    length: Tensor
    adversarial: Tensor
    nearest: Tensor
    distance: Tensor
    radius: Tensor


def nearest(
    model: Oracle,
    images: Tensor,
    objective: AttackObjective,
    norm: str,
    count: int,
    move: Move,
    radius: Tensor,
    start: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Make `count` steps from `start` (N, C, H, W), or from the images, with the first `radius` (N, 1, 1, 1).
    Returns the nearest adversarial examples and their distances (N,), which are 0 for misclassified images.
    """
    unknown = torch.full_like(images.flatten(1)[:, 0], torch.inf)
    points = images.clone() if start is None else start
    length, none = distances(points, images, norm), unknown.isnan()
    search = Search(images, points, length, none, images.clone(), unknown, radius)

    def gradient_at(rows: slice) -> tuple[Tensor, ...]:
        some = model.take(rows)
        inputs, logits = some.with_graph(search.points[rows])
        return logits.detach(), *some.differentiate(inputs, logits, objective.take(rows))

    found = model.partial.open(model)
    if found is None:
        for number in range(continued(model, search), count):
            logits, value, gradient = model.in_chunks(len(images), gradient_at)
            _keep_nearest(model, search, logits, objective.labels, norm)
            search.points = move(search, gradient, value, number)
            search.length = distances(search.points, images, norm)
            keep(model, search, None, number + 1)
        _keep_nearest(model, search, model.logits(search.points), objective.labels, norm)
        found = model.partial.close({"points": search.nearest, "distance": search.distance})
    return found["points"], found["distance"]


def cosine(first: float, last: float, number: int, count: int) -> float:
    """The value at step `number` of `count` on a half cosine from `first` to `last`."""
    return last + (first - last) * (1 + math.cos(math.pi * number / count)) / 2


def _keep_nearest(model: Oracle, search: Search, logits: Tensor, labels: Tensor, norm: str) -> None:
    """Keep the points that fool the model and are nearer to the image than the nearest points so far."""
    search.adversarial = ~model.still_correct(search.points, labels, logits)
    points, length = model.seen(search.points), search.length
    if points is not search.points:
        length = distances(points, search.images, norm)
    nearer = search.adversarial & (length < search.distance)
    search.nearest = torch.where(wide(nearer, points), points, search.nearest)
    search.distance = torch.where(nearer, length, search.distance)
