"""A model that adapts to its batch under attack: every pass is of the whole batch.

What such a model gives for an image depends on the others. So an attack on some examples of a batch passes
all of them: the others stay at the points where they are. An example that is wrong at one point may be right
again when the others have moved. So none is dropped: every pass tells how many examples of the batch are
right, and the batch of points with the fewest is kept.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from rbtools.attacks.steps import distances
from rbtools.attacks.target import Evaluated, Network, differentiate
from rbtools.errors import RbError
from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.base import Attack
    from rbtools.attacks.losses import AttackObjective

_SLACK = 1e-5  # of a distance, for the rounding of float32


class WholeBatch(Network):
    """The examples of a batch, each with its present point, on a model that has to get all of them at once.

    The logits and gradients of some examples are those of a pass of the whole batch. The gradient is that of
    the sum of their losses: it has what a point does to the others. drops: the search leaves an example at
    the point that fools the model, for one that wants the nearest; else it is told that none does.
    """

    def __init__(self, target: Network, method: Attack, images: Tensor, labels: Tensor) -> None:
        super().__init__(target)
        self.target, self.method, self.images, self.labels = target, method, images, labels
        self.gives, self.drops = target.gives, method.iterate == "last"
        self.rows = torch.arange(len(images), device=images.device)
        # shared with the targets of some of the examples
        self.points = images.clone()
        self.best = [(len(images) + 1, images)]  # how many are right, and the batch

    def take(self, rows: Tensor | slice) -> Network:
        some = copy(self)
        some.rows = self.rows[rows]
        return some

    def nearest(self) -> Network:
        some = copy(self)
        some.drops = True
        return some

    def __call__(self, images: Tensor) -> Tensor:
        return self.logits(images)

    def logits(self, images: Tensor) -> Tensor:
        if len(images) != len(self.rows):
            raise RbError(
                f"The attack {self.method.name} gave the model {len(images)} of {len(self.rows)} images. This"
                " model adapts to its batch, so an attack has to name those that it takes: target.take(rows)."
            )
        batch = self.points.index_copy(0, self.rows, images)
        self.points[self.rows] = images.detach()
        logits = self.target.logits(batch)
        self._note(batch.detach(), logits.detach())
        return logits[self.rows]

    def loss_and_gradient(
        self, points: Tensor, objective: AttackObjective, *, everyone: bool = False
    ) -> Evaluated:
        with torch.enable_grad():
            inputs = points.detach().requires_grad_(True)
            logits = self.logits(inputs)
        correct = self.still_correct(points, objective.labels, logits)
        kept = torch.ones_like(correct) if everyone else correct
        if not kept.any():
            return Evaluated(correct, logits.detach()[:0, 0], points[:0])

        def of_kept(logits: Tensor) -> Tensor:
            """The losses that are summed: a broken example needs no larger one."""
            return objective(logits) * kept

        loss, gradient = differentiate(self, inputs, logits, of_kept)
        return Evaluated(correct, loss[kept], gradient[kept])

    def still_correct(self, points: Tensor, labels: Tensor, logits: Tensor | None = None) -> Tensor:
        correct = super().still_correct(points, labels, logits)
        return correct if self.drops else torch.ones_like(correct)

    def chosen(self, points: Tensor) -> Tensor:
        """Of the batches that the attack met, the one that it returned (N, C, H, W) and the unchanged one,
        that with the fewest right answers."""
        with torch.no_grad():
            for batch in (points, self.images):
                self._note(batch, self.target.logits(batch))
        return self.best[0][1]

    def _note(self, batch: Tensor, logits: Tensor) -> None:
        """Keep the batch if fewer of its examples are right than of any before."""
        right = int(logits.argmax(1).eq(self.labels).sum())
        if right < self.best[0][0]:
            far = distances(batch, self.images, self.method.norm).max()
            if far <= self.method.eps * (1 + _SLACK):
                self.best[0] = right, batch.clone()
