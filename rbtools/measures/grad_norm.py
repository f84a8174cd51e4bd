"""The norm of the gradient of a batch's loss, and its square."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.lazy import nn
from rbtools.measures import derivatives
from rbtools.measures.base import BatchResult, Measure, MeasureBatch


@dataclass(frozen=True, kw_only=True)
class NASI(Measure):
    """Squared norm of the gradient of a batch's mean cross-entropy, at initialisation.

    Shu et al. 2022 (arXiv:2109.00817) use it to approximate the trace norm of the neural tangent kernel in a
    differentiable search. In that search, this score does not rank architectures. BatchNorm uses the batch's
    statistics.
    """

    name = "nasi"
    weights = "init"
    size = 1, 128
    batchnorm = "batch"

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        gradient = derivatives.gradient(model, batch.images, batch.labels, batch.chunk)
        return {"": derivatives.read_sum(part.double().square().sum() for part in gradient.values())}


@dataclass(frozen=True, kw_only=True)
class GradNorm(NASI):
    """Euclidean norm of the gradient of a batch's mean cross-entropy with respect to all weights.

    The score follows Abdelfattah et al. 2021 (arXiv:2101.08134) and is computed at initialisation. The score
    is the norm of the complete gradient, while the authors' code adds up the norms of the layers. The
    authors' networks are in training mode.
    """

    name = "grad_norm"

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        return {"": super().__call__(model, batch)[""] ** 0.5}
