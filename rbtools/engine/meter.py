"""What a search costs and where it is blind: passes through a model, and gradients that are zero."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Metered(nn.Module):
    """A model that counts the images that go forward through it and backward, and zero gradients.

    `zero_gradients` are counted in the first backward pass of each piece of examples (`begin`): what has
    no gradient at its start does not move, which looks like robustness.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.forwards = self.backwards = self.zero_gradients = 0
        self._first = False

    def begin(self) -> None:
        """Other examples come now."""
        self._first = True

    def forward(self, images: Tensor) -> Tensor:
        self.forwards += len(images)
        if not (images.requires_grad and torch.is_grad_enabled()):
            logits: Tensor = self.model(images)
            return logits
        inputs = images.view_as(images)
        inputs.register_hook(self._seen)
        logits = self.model(inputs)
        return logits

    def _seen(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)
        if self._first:
            self._first = False
            self.zero_gradients += int((gradient == 0).flatten(1).all(1).sum())
