"""Multiply-accumulate operations of one image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.measures.base import Found, Measure, MeasureBatch

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class MACs(Measure):
    """Multiply-accumulate operations of the convolutions and linear layers that run for one image."""

    name: ClassVar[str] = "macs"
    weights: ClassVar[str] = "none"
    data: ClassVar[bool] = False
    less_is_better: ClassVar[bool] = True

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> Found:
        from rbtools.measures import layer_counts

        return {"": layer_counts.macs(model, batch.images[:1])}
