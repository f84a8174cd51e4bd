"""Sharpness: the increase of the robust loss under adversarially perturbed weights."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.lazy import nn
from rbtools.measures import derivatives
from rbtools.measures.base import BatchResult, Measure, MeasureBatch
from rbtools.registry import rare_param


@dataclass(frozen=True, kw_only=True)
class Sharpness(Measure):
    """Cross-entropy on adversarial images with perturbed weights, minus the cross-entropy with the original
    weights.

    As in Wu et al. 2020 (arXiv:2004.05884), each weight tensor of a convolution or a linear layer is moved
    one step along its gradient; the norm of the step is `gamma` times the norm of the tensor. The adversarial
    images are computed with the original weights.
    """

    name = "sharpness"
    weights = "trained"
    less_is_better = True
    attacks = 1

    gamma: float = rare_param(
        0.01, "Norm of the step, relative to the norm of the weight tensor.", check="positive"
    )

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        names = list(derivatives.layers(model).values())
        weights = derivatives.weights_of(model, names)
        images, labels, chunk = batch.attacked, batch.labels, batch.chunk
        gradient = derivatives.gradient(model, images, labels, chunk)
        moved = {}
        for name, weight in weights.items():
            length = gradient[name].norm()
            step = self.gamma * weight.norm() / length.clamp_min(1e-30)
            moved[name] = weight + step * gradient[name]
        there = derivatives.mean_loss(model, moved, images, labels, chunk)
        return {"": there - derivatives.mean_loss(model, weights, images, labels, chunk)}
