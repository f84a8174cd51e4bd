"""Number of parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.measures.base import BatchResult, Measure, MeasureBatch

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class Params(Measure):
    """Number of parameters of the network."""

    name: ClassVar[str] = "params"
    weights: ClassVar[str] = "none"
    data: ClassVar[bool] = False
    less_is_better: ClassVar[bool] = True

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        return {"": sum(parameter.numel() for parameter in model.parameters())}
