"""Gradient norm: length of the gradient of a batch's loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.measures import derivatives
from rbtools.measures.base import BatchResult, Measure, MeasureBatch

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class GradNorm(Measure):
    """Euclidean length of the gradient of a batch's mean cross-entropy with respect to all weights.

    As in Abdelfattah et al. 2021 (arXiv:2101.08134), but of the whole gradient, where their code adds up
    the lengths of its layers; their networks are in training mode. At initialisation.
    """

    name: ClassVar[str] = "grad_norm"
    weights: ClassVar[str] = "init"
    size: ClassVar[tuple[int, int]] = (1, 128)
    batchnorm: ClassVar[str | None] = "batch"

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        gradient = derivatives.gradient(model, batch.images, batch.labels, batch.chunk)
        return {"": derivatives.read_sum(part.double().square().sum() for part in gradient.values()) ** 0.5}
