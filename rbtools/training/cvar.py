"""CVaR: the mean of the worst share of an image's losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.errors import RbError
from rbtools.registry import param
from rbtools.training.base import Terms
from rbtools.training.sampled import Sampled

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class CVaR(Sampled):
    """Probabilistically robust learning (Robey et al. 2022, arXiv:2202.01136): CVaR of the losses around x.

    CVaR = min over t of t + E[relu(loss - t)] / beta is the mean of the worst share `beta` of the losses.
    There are three ways to it. `tail="prl"` is PRBench's algorithm 1: each image has a threshold t, 1 at
    first; in each of `rounds` its points are drawn anew and t moves by -tail_lr * (1 - share above t /
    beta); the loss is E[relu(loss - t)] / beta of the last points and the t they led to. "advbench" is
    Robey et al.'s code: t moves by that over the batch size, and the loss is t + E[relu(loss - t)] / beta
    with the t before the last move. "exact" draws once and takes the t that is best for these points.
    """

    name: ClassVar[str] = "cvar"
    version: ClassVar[int] = 1

    beta: float = param(0.5, "The share of losses that counts as the tail.", check="positive")
    tail: str = param("prl", "How the threshold is found.", choices=("prl", "advbench", "exact"))
    rounds: int = param(5, "Moves of the threshold, unless the tail is exact.", check="positive")
    tail_lr: float = param(1.0, "Length of a move.", check="non-negative")

    def __post_init__(self) -> None:
        if self.beta > 1:
            raise RbError(f"beta of training method 'cvar' is {self.beta:g}. It must be above 0, at most 1.")

    @property
    def passes(self) -> tuple[int, int]:
        return self.samples * (1 if self.tail == "exact" else self.rounds), self.samples

    @property
    def of_whole_batches(self) -> bool:
        return self.tail == "advbench"

    def solve(
        self, model: nn.Module, images: Tensor, labels: Tensor, draws: Any
    ) -> tuple[Tensor | None, list[Tensor]]:
        """The thresholds (N,) before the last round, and that round's points."""
        import torch

        if self.tail == "exact":
            return None, self.points(images, draws, 0)
        threshold = images.new_ones(len(images))
        with torch.no_grad():
            for number in range(self.rounds - 1):
                losses, _ = self.losses(model, self.points(images, draws, number), labels)
                threshold = self.moved(threshold.to(losses), losses)
        return threshold, self.points(images, draws, self.rounds - 1)

    def moved(self, threshold: Tensor, losses: Tensor) -> Tensor:
        """The thresholds after one step down their gradient; losses (M, N)."""
        if self.tail == "prl":
            return threshold - self.tail_lr * (1 - (losses >= threshold).to(losses).mean(0) / self.beta)
        slope = 1 - (losses > threshold).to(losses).mean(0) / self.beta
        return threshold - self.tail_lr * slope / losses.shape[1]

    def terms(self, model: nn.Module, images: Tensor, labels: Tensor, solved: Any) -> Terms:
        threshold, points = solved
        losses, worst = self.losses(model, points, labels)
        if self.tail == "exact":
            threshold = quantile(losses.detach(), self.beta)
        elif self.tail == "prl":
            threshold = self.moved(threshold.to(losses), losses.detach())
        above = (losses - threshold).relu().mean(0) / self.beta
        return self.risk(above if self.tail == "prl" else threshold + above, worst)


def quantile(losses: Tensor, beta: float) -> Tensor:
    """The t (N,) where t + mean(relu(losses - t)) / beta is least, for losses (M, N).

    Its slope is 1 - (share above t) / beta, so it is the smallest loss that no more than beta of them are
    above.
    """
    count = len(losses)
    above = min(int(beta * count + 1e-9), count - 1)
    return losses.sort(dim=0, descending=True).values[above]
