"""A network behind defence stages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rbtools.defences.base import Backward, Defence


class Defended(nn.Module):
    """A network behind defence stages. It maps images (N, C, H, W) in [0, 1] to logits (N, K).

    `model` accepts images in [0, 1], so its first layer is the normalisation. `backward`, unless it is None,
    replaces the attribute `backward` of every stage. `none` makes the gradient zero. The other values
    are described in `Defence`.
    """

    def __init__(
        self, model: nn.Module, stages: Iterable[Defence], *, backward: Backward | None = None
    ) -> None:
        super().__init__()
        self.model, self.stages = model, tuple(stages)
        self.backward = backward

    def extra_repr(self) -> str:
        """Lists the stages. The text is part of the key of stored outcomes."""
        stages = ", ".join(f"{stage!r} version {stage.version}" for stage in self.stages)
        return f"{stages}; backward {self.backward}"

    def forward(self, images: Tensor) -> Tensor:
        for stage in self.stages:
            images = self._passed(stage, images)
        logits: Tensor = self.model(images)
        return logits

    def before(self, model: nn.Module) -> Defended:
        """Returns the same stages in front of another model."""
        return Defended(model, self.stages, backward=self.backward)

    def _passed(self, stage: Defence, images: Tensor) -> Tensor:
        backward = self.backward or stage.backward
        if not (images.requires_grad and torch.is_grad_enabled()):
            return stage(images)
        if backward == "own":
            return stage(images)
        with torch.no_grad():
            value = stage(images)
        if backward == "stand-in":
            return _with_gradient_of(stage.stand_in(images), value)
        same = images
        if same.shape != value.shape:
            same = F.interpolate(same, value.shape[-2:], mode="bilinear", align_corners=False)
        return _with_gradient_of(same * 0 if backward == "none" else same, value)


class _Replaced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stand_in: Tensor, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def _with_gradient_of(stand_in: Tensor, value: Tensor) -> Tensor:
    result: Tensor = _Replaced.apply(stand_in, value)
    return result


def bare(model: nn.Module) -> nn.Module:
    """The network of a model, without its stages. A model without stages is returned unchanged."""
    return next((module.model for module in model.modules() if isinstance(module, Defended)), model)
