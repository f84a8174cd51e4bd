"""The base class of the mean and the two risk measures of an image's losses under random perturbations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.lazy import torch
from rbtools.registry import param
from rbtools.training.base import InnerResult, LossTerms, Method, cross_entropy
from rbtools.training.random_perturbations import noisy

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rbtools.rng.draws import Draws


@dataclass(frozen=True, kw_only=True)
class Sampled(Method[InnerResult]):
    """The mean or a risk measure of the losses at `samples` uniform points of the ball around each image.

    The points are clipped to [0, 1]. The model is in training mode in all of their passes: BatchNorm sees
    each sample of the batch.
    """

    inner: ClassVar[str | None] = "noise"

    eps: float = param(8 / 255, "Radius of the L-infinity ball.", unit="eps", check="non-negative")
    samples: int = param(
        20, "Random points of each image: 20 (text), 10 (PRBench's code, for cvar).", check="positive"
    )

    def points(self, images: Tensor, draws: Draws, number: int) -> list[Tensor]:
        """The points of the round of that number, each as `images` (N, C, H, W); each is drawn once."""
        names = (f"round {number} sample {sample}" for sample in range(self.samples))
        return [noisy(images, draws, "uniform", self.eps, name) for name in names]

    def losses(self, model: nn.Module, points: list[Tensor], labels: Tensor) -> tuple[Tensor, Tensor]:
        """The losses (M, N) of M points of each image, and the logits (N, K) of each image's worst point."""
        logits = torch.stack([model(point) for point in points])
        losses = torch.stack([cross_entropy(one, labels) for one in logits])
        worst = losses.detach().argmax(0)
        return losses, logits.detach()[worst, torch.arange(len(worst), device=worst.device)]

    @staticmethod
    def risk(values: Tensor, worst: Tensor) -> LossTerms:
        """Terms of these values; the adversarial image is each image's worst point."""
        return LossTerms(values, adversarial=worst)
