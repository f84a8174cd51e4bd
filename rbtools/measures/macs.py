"""The size of a network: the number of its parameters and of multiply-accumulate operations for one image."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.lazy import nn
from rbtools.measures.base import BatchResult, Measure, MeasureBatch


@dataclass(frozen=True, kw_only=True)
class Params(Measure):
    """Number of parameters of the network."""

    name = "params"
    weights = "none"
    data = False
    less_is_better = True

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        return {"": sum(parameter.numel() for parameter in model.parameters())}


@dataclass(frozen=True, kw_only=True)
class MACs(Measure):
    """Multiply-accumulate operations for one image: convolutions, linear and recurrent layers, attention."""

    name = "macs"
    version = 2
    weights = "none"
    data = False
    less_is_better = True

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        from rbtools.models.meta import multiply_adds

        return {"": multiply_adds(model, batch.images[:1])}
