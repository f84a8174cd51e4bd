"""Decisions by a float32 copy of a model, which leaves nearly tied images to the model itself.

A copy with folded BatchNorm and another memory format computes the same function with other roundings, which
are near 1e-6 of the largest logits. They can change a decision only if the two largest logits are that close.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    Model = Callable[[Tensor], Tensor]

TIE = 1e-3  # of the largest absolute logit: many times the roundings that `agrees` accepts
_AGREES = TIE / 16


@dataclass(frozen=True, eq=False)
class Judge:
    """A float32 `copy` of a model. `largest` is the largest absolute logit of some images: the roundings of
    an image whose logits are all near 0 are not smaller than those of the others."""

    copy: Model
    largest: float

    @classmethod
    def of(cls, copy: Model, logits: Tensor) -> Judge:
        """The judge of a model that has these logits (N, K) for some images."""
        return cls(copy, float(logits.abs().max()))

    def tied(self, logits: Tensor) -> Tensor:
        """Whether the two largest logits (N, K) of an image are nearly equal, or not finite: bool (N,)."""
        if logits.shape[1] < 2:
            return torch.zeros_like(logits[:, 0], dtype=torch.bool)
        first, second = logits.topk(2, dim=1).values.unbind(1)
        return ~(first - second > TIE * self._scale(logits))  # true for NaN, too

    def agrees(self, logits: Tensor, copies: Tensor) -> bool:
        """Whether the logits (N, K) of the copy differ from those of the model by little beside a tie."""
        return bool(((logits - copies).abs().amax(1) <= _AGREES * self._scale(logits)).all())

    def logits(self, model: Model, images: Tensor) -> Tensor:
        """The logits (N, K) of the copy or, for nearly tied images (N, C, H, W), of the model, in float32."""
        logits = self.copy(images).float()
        tied = self.tied(logits)
        if tied.any():
            logits[tied] = model(images[tied]).float()
        return logits

    def _scale(self, logits: Tensor) -> Tensor:
        return logits.abs().amax(1).clamp_min(self.largest)
