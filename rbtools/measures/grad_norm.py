"""Gradient norm: length of the gradient of a batch's loss."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.lazy import nn
from rbtools.measures import derivatives
from rbtools.measures.base import BatchResult, Measure, MeasureBatch


@dataclass(frozen=True, kw_only=True)
class GradNorm(Measure):
    """Euclidean length of the gradient of a batch's mean cross-entropy with respect to all weights.

    As in Abdelfattah et al. 2021 (arXiv:2101.08134), but of the whole gradient, where their code adds up
    the lengths of its layers; their networks are in training mode. At initialisation.
    """

    name = "grad_norm"
    weights = "init"
    size = (1, 128)
    batchnorm = "batch"

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        gradient = derivatives.gradient(model, batch.images, batch.labels, batch.chunk)
        return {"": derivatives.read_sum(part.double().square().sum() for part in gradient.values()) ** 0.5}
