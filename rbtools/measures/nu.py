"""Nu: the largest change of the softmax output within the ball."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rbtools.lazy import Tensor, nn, torch
from rbtools.measures.base import BatchResult, Measure, MeasureBatch, Value, over_images
from rbtools.registry import param


@dataclass(frozen=True, kw_only=True)
class Nu(Measure):
    """Mean over the images of the largest distance |p(x + d) - p(x)| of softmax outputs for |d| <= eps.

    PRBench eq. 17, with the Euclidean distance, found by gradient steps on it from a uniform start in the
    L-infinity ball and the box, so a lower bound; nu.max is the largest of the images. The best iterate
    counts.
    """

    name = "nu"
    version = 2
    weights = "trained"
    split = "test"
    random = True
    less_is_better = True
    own_eps = True
    of_images = True

    eps: float = 8 / 255
    steps: int = param(20, "Gradient steps, of 2.5*eps/steps each.", check="positive")

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        rows = torch.arange(len(batch), device=batch.images.device)
        each: list[float] = []
        for some in rows.split(batch.chunk):
            start = batch.draws.take(some).child("nu").uniform(batch.images.shape[1:]).mul(2).sub(1)
            each += self._distances(model, batch.images[some], start).tolist()
        return {"": each}

    def values(self, results: Sequence[BatchResult], sizes: Sequence[int]) -> list[Value]:
        """The standard error is over examples."""
        each = [distance for result in results for distance in result[""]]
        largest = max(each) if all(map(math.isfinite, each)) else math.nan
        return [over_images("", each), Value("max", largest)]

    def _distances(self, model: nn.Module, images: Tensor, start: Tensor) -> Tensor:
        """The largest distance over all steps for each image (N,)."""
        with torch.no_grad():
            there = model(images).double().softmax(1)
        best = torch.zeros(len(images), dtype=torch.float64, device=images.device)
        points = _within(images + self.eps * start, images, self.eps)
        for step in range(self.steps + 1):
            with torch.enable_grad():
                points = points.detach().requires_grad_()
                # Squared: the root has no derivative at distance 0.
                squares = (model(points).double().softmax(1) - there).square().sum(1)
                (gradient,) = torch.autograd.grad(
                    squares.sum(), points, allow_unused=True, materialize_grads=True
                )
            best = torch.maximum(best, squares.detach())
            if step < self.steps:
                moved = points.detach() + 2.5 * self.eps / self.steps * gradient.sign()
                points = _within(moved, images, self.eps)
        distances: Tensor = best.sqrt()
        return distances


def _within(points: Tensor, images: Tensor, eps: float) -> Tensor:
    """Project points onto the ball around the images and onto the box."""
    points_inside: Tensor = torch.minimum(torch.maximum(points, images - eps), images + eps).clamp(0, 1)
    return points_inside
