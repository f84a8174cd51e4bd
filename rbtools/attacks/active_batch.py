"""The examples of the attacks in this package, of which broken ones leave."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from rbtools.attacks.active_examples import CheckSchedule, check_schedule
from rbtools.attacks.losses import AttackObjective
from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.losses import Loss
    from rbtools.attacks.target import Network
    from rbtools.rng.draws import Draws

    # From a model, a batch and whether more stages follow to (an image each, which of them fool the model).
    Stage = Callable[[Network, "AttackBatch", bool], tuple[Tensor, Tensor]]


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
