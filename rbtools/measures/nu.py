"""Nu: the largest change of the softmax output within the ball."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rbtools.attacks import steps
from rbtools.lazy import Tensor, nn, torch
from rbtools.measures.base import BatchResult, Measure, MeasureBatch, Value, over_images
from rbtools.registry import param
from rbtools.rng.draws import Draws
from rbtools.threats import ball


@dataclass(frozen=True, kw_only=True)
class Nu(Measure):
    """Mean over the images of the largest distance |p(x + d) - p(x)| of softmax outputs for |d| <= eps.

    In PRBench's eq. 17, both norms are L2, and nu is the largest distance over the images, nu.max. With the
    norm linf, the ball is the ball of the attacks. The distance is maximised by gradient steps for fixed
    weights, starting from a uniform sample in the ball and the box. The result is therefore a lower bound.
    The largest distance over all steps counts. --eps is in units of 1/255 for both norms.
    """

    name = "nu"
    version = 3
    weights = "trained"
    split = "test"
    random = True
    less_is_better = True
    own_eps = True
    of_images = True

    eps: float = 8 / 255
    norm: str = param("l2", "Norm of the ball: l2 (PRBench) or linf.", choices=("l2", "linf"))
    steps: int = param(20, "Number of gradient steps, each of size 2.5*eps/steps.", check="positive")

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        rows = torch.arange(len(batch), device=batch.images.device)
        each: list[float] = []
        for some in rows.split(batch.chunk):
            draws = batch.draws.take(some).child("nu")
            each += self._distances(model, batch.images[some], draws).tolist()
        return {"": each}

    def values(self, results: Sequence[BatchResult], sizes: Sequence[int]) -> list[Value]:
        each = [distance for result in results for distance in result[""]]
        largest = max(each) if all(map(math.isfinite, each)) else math.nan
        return [over_images("", each), Value("max", largest)]

    def _distances(self, model: nn.Module, images: Tensor, draws: Draws) -> Tensor:
        """The largest distance over all steps for each image (N,)."""
        with torch.no_grad():
            there = model(images).double().softmax(1)
        best = torch.zeros(len(images), dtype=torch.float64, device=images.device)
        points = ball.uniform_start(images, draws, self.eps, self.norm)
        length = 2.5 * self.eps / self.steps
        for step in range(self.steps + 1):
            with torch.enable_grad():
                points = points.detach().requires_grad_()
                # Squared, because the root has no derivative at distance 0.
                squares = (model(points).double().softmax(1) - there).square().sum(1)
                (gradient,) = torch.autograd.grad(
                    squares.sum(), points, allow_unused=True, materialize_grads=True
                )
            best = torch.maximum(best, squares.detach())
            if step < self.steps:
                points = steps.step(
                    points.detach(), gradient, images, eps=self.eps, step_size=length, norm=self.norm
                )
        distances: Tensor = best.sqrt()
        return distances
