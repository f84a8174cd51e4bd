"""SNIP: the sensitivity of the loss to removing single weights."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.lazy import nn
from rbtools.measures import derivatives
from rbtools.measures.base import BatchResult, Measure, MeasureBatch


@dataclass(frozen=True, kw_only=True)
class SNIP(Measure):
    """Sum over the weights of convolutions and linear layers of |weight * gradient of a batch's loss|.

    The score was introduced by Lee et al. 2019 (arXiv:1810.02340) and is computed at initialisation.
    Abdelfattah et al. 2021 (arXiv:2101.08134) use it to rank networks, which are in training mode.
    """

    name = "snip"
    weights = "init"
    size = 1, 128
    batchnorm = "batch"

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        names = list(derivatives.layers(model).values())
        weights = derivatives.weights_of(model, names)
        gradient = derivatives.gradient(model, batch.images, batch.labels, batch.chunk)
        return {
            "": derivatives.read_sum((weights[name] * gradient[name]).abs().double().sum() for name in names)
        }
