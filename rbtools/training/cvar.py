"""CVaR: the mean of the worst share of an image's losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from rbtools.errors import RbError
from rbtools.lazy import Tensor, nn, torch
from rbtools.registry import param
from rbtools.rng.draws import Draws
from rbtools.training.base import LossTerms
from rbtools.training.sampled import Sampled

Thresholds: TypeAlias = "tuple[Tensor | None, list[Tensor]]"


@dataclass(frozen=True, kw_only=True)
class CVaR(Sampled):
    """Probabilistically robust learning (Robey et al. 2022, arXiv:2202.01136): the CVaR of the losses around
    x.

    CVaR = min over t of t + E[relu(loss - t)] / beta is the mean of the largest share `beta` of the losses.
    There are three variants (`tail`). In the variants "advbench" and "prl", each image has a threshold t,
    which is initially 1. In each of the `rounds`, new points are sampled around the image, and t changes by
    -tail_lr * (1 - s / beta), where s is the share of losses above t. If `tail_step` is "batch", this change
    is divided by the number of images. `tail="advbench"` is the code of Robey et al. and of PRBench
    (wellzline/PRBenchmark, CVaR_loss): the loss is t + E[relu(loss - t)] / beta at the last points, with the
    t before the last change. The variant "prl" is PRBench's algorithm 1: the loss is E[relu(loss - t)] / beta
    with the t after the last change, but with a t that is at most the minimiser for these points, because an
    image with t above all losses would have no gradient. The variant "exact" samples points once and uses the
    minimiser for these points.
    """

    name = "cvar"
    version = 2  # since 2 every image has a gradient, with prl, and with exact if losses are equal

    beta: float = param(0.5, "The share of losses in the tail.", check="positive")
    tail: str = param(
        "advbench",
        "How the threshold is found: as in PRBench's paper (prl), as in its code (advbench), or exactly"
        " (exact).",
        choices=("advbench", "prl", "exact"),
    )
    rounds: int = param(5, "Number of steps of the threshold; unused with --tail exact.", check="positive")
    tail_lr: float = param(1.0, "Step size of the threshold.", check="non-negative")
    tail_step: str = param(
        "batch",
        "Whether a step of the threshold is divided by the batch size: no (image) as in PRBench's paper, or"
        " yes (batch) as in its code.",
        choices=("batch", "image"),
    )

    def __post_init__(self) -> None:
        if self.beta > 1:
            raise RbError(f"beta of training method 'cvar' is {self.beta:g}. Expected 0 < beta <= 1.")

    @property
    def unused(self) -> dict[str, str]:
        moves = ("rounds", "tail_lr", "tail_step")
        return dict.fromkeys(moves, "--tail exact, which makes no steps") if self.tail == "exact" else {}

    @property
    def of_whole_batches(self) -> bool:
        return self.tail != "exact" and self.tail_step == "batch"

    def inner_attack(self, model: nn.Module, images: Tensor, labels: Tensor, draws: Draws) -> Thresholds:
        """Return the thresholds (N,) before the last round, and the points of the last round."""
        if self.tail == "exact":
            return None, self.points(images, draws, 0)
        threshold = images.new_ones(len(images))
        with torch.no_grad():
            for number in range(self.rounds - 1):
                losses, _ = self.losses(model, self.points(images, draws, number), labels)
                threshold = self.moved(threshold.to(losses), losses)
        return threshold, self.points(images, draws, self.rounds - 1)

    def moved(self, threshold: Tensor, losses: Tensor) -> Tensor:
        """Return the thresholds after one step of gradient descent. The losses are (M, N)."""
        above = losses >= threshold if self.tail == "prl" else losses > threshold
        move = self.tail_lr * (1 - above.to(losses).mean(0) / self.beta)
        return threshold - (move / losses.shape[1] if self.tail_step == "batch" else move)

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, inner_result: Thresholds) -> LossTerms:
        threshold, points = inner_result
        losses, worst = self.losses(model, points, labels)
        if threshold is None:  # --tail exact
            threshold = quantile(losses, self.beta)
        elif self.tail == "prl":
            still = losses.detach()
            threshold = self.moved(threshold.to(losses), still).minimum(quantile(still, self.beta))
            # A loss equal to the threshold counts as above it, as in `moved`.
            above = (losses - threshold).where(still >= threshold, 0).mean(0) / self.beta
            return LossTerms(above, adversarial=worst)
        above = (losses - threshold).relu().mean(0) / self.beta
        return LossTerms(threshold + above, adversarial=worst)


def quantile(losses: Tensor, beta: float) -> Tensor:
    """The t (N,) that minimises t + mean(relu(losses - t)) / beta, for losses (M, N). It is the smallest loss
    that at most a share beta of the losses exceeds, because the slope is 1 - (share above t) / beta."""
    count = len(losses)
    above = min(int(beta * count + 1e-9), count - 1)
    return losses.sort(dim=0, descending=True).values[above]
