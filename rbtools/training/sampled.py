"""The base class of methods that minimise the mean or a risk measure of losses under random perturbations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rbtools.lazy import Tensor, nn, torch
from rbtools.registry import param
from rbtools.rng.draws import Draws
from rbtools.training.base import LossTerms, Method, cross_entropy, noisy


@dataclass(frozen=True, kw_only=True)
class Sampled(Method[Any]):
    """The mean or a risk measure of the losses at `samples` uniform points in the ball around each image.

    The points are clipped to [0, 1]. The model is in training mode in all passes, so each pass of the batch
    updates BatchNorm.
    """

    inner = "noise"

    eps: float = param(8 / 255, "Radius of the L-infinity ball.", unit="eps", check="non-negative")
    samples: int = param(
        20,
        "Number of random points for each image. PRBench's paper uses 20; its code uses 10 for cvar.",
        check="positive",
    )

    def inner_attack(self, model: nn.Module, images: Tensor, labels: Tensor, draws: Draws) -> Any:
        return self.points(images, draws, 0)

    def points(self, images: Tensor, draws: Draws, number: int) -> list[Tensor]:
        """Return the points of a round, each shaped as `images` (N, C, H, W). Each point is sampled once."""
        names = (f"round {number} sample {sample}" for sample in range(self.samples))
        return [noisy(images, draws, "uniform", self.eps, name) for name in names]

    def losses(self, model: nn.Module, points: list[Tensor], labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses (M, N) at M points of each image, and the logits (N, K) at the worst point of
        each image."""
        logits = torch.stack([model(point) for point in points])
        losses = torch.stack([cross_entropy(rows, labels) for rows in logits])
        worst = losses.detach().argmax(0)
        return losses, logits[worst, torch.arange(len(worst), device=worst.device)]

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, inner_result: Any) -> LossTerms:
        losses, worst = self.losses(model, inner_result, labels)
        return LossTerms(self.risk(losses), adversarial=worst)

    def risk(self, losses: Tensor) -> Tensor:
        """Return the loss of each image (N,) from the losses (M, N) at its points."""
        raise NotImplementedError
