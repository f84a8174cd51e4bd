"""Decisions by a float32 copy of a model, which leaves nearly tied images to the model itself.

A copy with folded BatchNorm and another memory format computes the same function with other roundings, which
are near 1e-6 of the largest logit. They can change a decision only if the two largest logits are that close.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    Model = Callable[[Tensor], Tensor]

TIE = 1e-3  # of the largest absolute logit of an image: many times the roundings that `agree` accepts
_AGREES = TIE / 16


def nearly_tied(logits: Tensor) -> Tensor:
    """Whether the two largest logits (N, K) of an image are nearly equal, or not finite: bool (N,)."""
    if logits.shape[1] < 2:
        return torch.zeros_like(logits[:, 0], dtype=torch.bool)
    first, second = logits.topk(2, dim=1).values.unbind(1)
    return ~(first - second > TIE * logits.abs().amax(1))  # true for NaN, too


def agree(logits: Tensor, copies: Tensor) -> bool:
    """Whether the logits (N, K) of a copy differ from those of the model by little beside a tie."""
    return bool(((logits - copies).abs().amax(1) <= _AGREES * logits.abs().amax(1)).all())


def decided(model: Model, copy: Model, images: Tensor) -> Tensor:
    """The logits (N, K) of the copy or, for nearly tied images (N, C, H, W), of the model, in float32."""
    logits = copy(images).float()
    tied = nearly_tied(logits)
    if tied.any():
        logits[tied] = model(images[tied]).float()
    return logits
