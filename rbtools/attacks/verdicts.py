"""Decisions by a float32 copy of a model, which leaves nearly tied images to the model itself.

A copy with folded BatchNorm and another memory format computes the same function with other rounding errors,
about 1e-6 of the largest logits. They can change a decision only if the two largest logits are that close.
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
    """A float32 `copy` of a model that decides for it. `largest` is the largest absolute logit of some
    images, because the rounding errors do not become smaller for images whose logits are all near 0."""

    copy: Model
    largest: float

    @classmethod
    def of(cls, copy: Model, logits: Tensor) -> Judge:
        """Create the judge from a copy and the logits (N, K) of some images."""
        return cls(copy, float(logits.abs().max()))

    def tied(self, logits: Tensor) -> Tensor:
        """Whether the two largest logits (N, K) of an image are nearly equal, or not finite: bool (N,)."""
        if logits.shape[1] < 2:
            return torch.zeros_like(logits[:, 0], dtype=torch.bool)
        first, second = logits.topk(2, dim=1).values.unbind(1)
        return ~(first - second > TIE * self._scale(logits))  # true for NaN, too

    def agrees(self, logits: Tensor, copies: Tensor) -> bool:
        """Whether the logits (N, K) of copy and model differ by much less than the margin of a near tie."""
        return bool(((logits - copies).abs().amax(1) <= _AGREES * self._scale(logits)).all())

    def logits(self, model: Model, images: Tensor) -> Tensor:
        """Float32 logits (N, K) of the copy or, for nearly tied images (N, C, H, W), of the model."""
        logits = self.copy(images).float()
        tied = self.tied(logits)
        if tied.any():
            logits[tied] = model(images[tied]).float()
        return logits

    def _scale(self, logits: Tensor) -> Tensor:
        return logits.abs().amax(1).clamp_min(self.largest)
