"""Noise: the best of several random points in the ball."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks import losses
from rbtools.attacks.active_examples import ActiveExamples, wide
from rbtools.attacks.base import SequentialAttack, norm_param
from rbtools.lazy import torch
from rbtools.registry import param
from rbtools.threats import ball

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import AttackBatch, Stage
    from rbtools.attacks.oracle import Oracle


@dataclass(frozen=True, kw_only=True)
class NoiseAttack(SequentialAttack):
    """Random points in the ball, without gradients, as a baseline for other attacks.

    The points are uniformly distributed in the ball and clipped to the box. An example is dropped at its
    first point that fools the model. If no point fools the model, the point with the smallest margin is
    returned.

    Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,).
    """

    name: ClassVar[str] = "noise"
    words: ClassVar[str] = "noise"
    version: ClassVar[int] = 1
    random: ClassVar[bool] = True
    uses_gradients: ClassVar[bool] = False
    uses_logits: ClassVar[bool] = False
    loss: ClassVar[str] = "margin"
    clean_pass: ClassVar[bool] = False

    eps: float = 8 / 255
    norm: str = norm_param()
    samples: int = param(100, "Number of random points for each image.", check="positive")

    @property
    def most_passes(self) -> int:
        return self.draws_each * self.samples

    def stages(self, classes: int) -> list[Stage]:
        return [self._sample]

    def _sample(self, model: Oracle, batch: AttackBatch, more: bool) -> tuple[Tensor, Tensor]:
        active, best_point = ActiveExamples(batch), batch.images
        best = torch.full_like(batch.images.flatten(1)[:, 0], -torch.inf)
        for sample in range(self.samples):
            if not len(active):
                break
            points = ball.uniform_start(batch.images, batch.draws, self.eps, self.norm, draw=sample)
            logits = model.logits(points)
            value = losses.margin(logits, batch.labels, batch.labels).to(best)
            fooled = ~model.still_correct(points, batch.labels, logits)
            better = value > best
            best_point = torch.where(wide(better, points), points, best_point)
            best = torch.where(better, value, best)
            best_point, best, batch, model = active.update(
                sample, fooled, points, best_point, best, batch, model
            )
        return active.finish(best_point)
