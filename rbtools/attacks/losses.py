"""The losses that gradient attacks maximise, computed from the logits, label and target of each example.

Every loss is small or negative for a correctly classified example and increases as the example approaches
misclassification.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rbtools.lazy import F, torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import AttackBatch

    # Maps logits (N, K), labels (N,) and target classes (N,) to one value for each example (N,).
    Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class AttackObjective:
    """A loss, with labels (N,) and target classes (N,), which an untargeted loss ignores."""

    loss: Loss
    labels: Tensor
    targets: Tensor

    def __call__(self, logits: Tensor) -> Tensor:
        return self.loss(logits, self.labels, self.targets)

    def take(self, index: Tensor | slice) -> AttackObjective:
        return AttackObjective(self.loss, self.labels[index], self.targets[index])


def best_other(logits: Tensor, labels: Tensor) -> Tensor:
    """The largest logit among the wrong classes (N,)."""
    return logits.scatter(1, labels[:, None], -torch.inf).amax(1)


def of_class(logits: Tensor, labels: Tensor) -> Tensor:
    """The logit of each example's class in `labels` (N,)."""
    return logits.gather(1, labels[:, None])[:, 0]


def logit_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """The logit of the label minus the largest other logit (N,), which is negative if misclassified."""
    return of_class(logits, labels) - best_other(logits, labels)


def targets_of(ranks: Sequence[int], batch: AttackBatch) -> Tensor:
    """The target of each row of a batch (N,). Each of the equal parts of the batch has a rank, which is the
    position of its target among the wrong classes in decreasing order of the clean logits."""
    assert batch.logits is not None
    targets = ranked_targets(batch.logits, batch.labels)
    rank = torch.tensor(ranks, device=targets.device).repeat_interleave(len(targets) // len(ranks))
    return of_class(targets, rank)


def cross_entropy(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none")


def targeted_cross_entropy(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """The log-probability of the target class, or the cross-entropy where the target is the label itself."""
    sign = torch.where(targets == labels, 1.0, -1.0)
    return sign * F.cross_entropy(logits, targets, reduction="none")


def margin(logits: Tensor, labels: Tensor, targets: Tensor, kappa: float = math.inf) -> Tensor:
    """The largest other logit minus z_y, at most kappa (Carlini and Wagner 2017, arXiv:1608.04644)."""
    return (best_other(logits, labels) - of_class(logits, labels)).clamp_max(kappa)


def targeted_margin(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    return of_class(logits, targets) - of_class(logits, labels)


def targeted_logit_margin(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """The difference z_t - z_y, or the untargeted margin if the target is the label."""
    away = margin(logits, labels, targets)
    return torch.where(targets == labels, away, targeted_margin(logits, labels, targets))


def dlr(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """Difference of logits ratio (Croce and Hein 2020, eq. 6): the margin divided by z_(1) - z_(3)."""
    largest = logits.topk(3, dim=1).values
    return margin(logits, labels, targets) / (largest[:, 0] - largest[:, 2] + 1e-12)


def targeted_dlr(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """Targeted DLR (eq. 7): z_t - z_y divided by z_(1) - (z_(3) + z_(4)) / 2."""
    largest = logits.topk(4, dim=1).values
    scale = largest[:, 0] - (largest[:, 2] + largest[:, 3]) / 2
    return targeted_margin(logits, labels, targets) / (scale + 1e-12)


LOSSES: dict[str, Loss] = {
    "ce": cross_entropy,
    "targeted-ce": targeted_cross_entropy,
    "margin": margin,
    "targeted-margin": targeted_margin,
    "dlr": dlr,
    "targeted-dlr": targeted_dlr,
}


def ranked_targets(logits: Tensor, labels: Tensor) -> Tensor:
    """The wrong classes (N, K - 1) for each example, in decreasing order of their logits."""
    others = logits.scatter(1, labels[:, None], -torch.inf)
    return others.argsort(dim=1, descending=True, stable=True)[:, :-1]
