"""Noise, which returns the best of several random points in the ball."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks import losses
from rbtools.attacks.active_examples import wide
from rbtools.attacks.base import norm_param
from rbtools.attacks.drive import Iterate, SteppedAttack
from rbtools.lazy import torch
from rbtools.registry import param
from rbtools.threats import ball

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import AttackBatch
    from rbtools.attacks.oracle import Losses
    from rbtools.rng.draws import Draws


@dataclass(frozen=True, kw_only=True)
class NoiseAttack(SteppedAttack):
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
    unbroken = "best_points"

    eps: float = 8 / 255
    norm: str = norm_param()
    samples: int = param(100, "Number of random points for each image.", check="positive")

    @property
    def most_passes(self) -> int:
        return self.draws_each * self.samples

    @property
    def length(self) -> int:
        return self.samples

    def begin(self, batch: AttackBatch, restart: int) -> _BestPoint:
        lowest = torch.full_like(batch.images.flatten(1)[:, 0], -torch.inf)
        goal = batch.goal(losses.margin)
        return _BestPoint(batch.images, batch.images, goal, batch.draws, batch.images, lowest)

    def ask(self, state: _BestPoint, step: int) -> Tensor:
        return ball.uniform_start(state.images, state.draws, self.eps, self.norm, draw=step)

    def tell(self, state: _BestPoint, seen: Losses, step: int) -> None:
        value = seen.loss.to(state.best)
        better = value > state.best
        state.best_points = torch.where(wide(better, seen.points), seen.points, state.best_points)
        state.best = torch.where(better, value, state.best)


@dataclass
class _BestPoint(Iterate):
    """The margins `best` (N,) belong to `best_points`."""

    draws: Draws
    best_points: Tensor
    best: Tensor
