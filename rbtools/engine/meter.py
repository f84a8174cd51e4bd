"""What a search costs and where it is blind: passes through a model, and gradients that are zero."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Metered(nn.Module):
    """A model that counts the images that go forward through it and backward, and zero gradients.

    `zero_gradients` are counted in the first backward pass of each example (`begin`): what has
    no gradient at its start does not move, which looks like robustness. `batch`: how many images it takes
    at once; attacks send more through in pieces, and without gradients it does that itself.
    """

    def __init__(self, model: nn.Module, batch: int | None = None) -> None:
        super().__init__()
        self.model, self.batch = model, batch
        self.forwards = self.backwards = self.zero_gradients = 0
        self._left = 0

    def begin(self, count: int) -> None:
        """Other examples come now, so many."""
        self._left = count

    def forward(self, images: Tensor) -> Tensor:
        self.forwards += len(images)
        if not (images.requires_grad and torch.is_grad_enabled()):
            pieces = images.split(self.batch or max(len(images), 1))
            return torch.cat([self.model(piece) for piece in pieces])
        inputs = images.view_as(images)
        inputs.register_hook(self._seen)
        logits: Tensor = self.model(inputs)
        return logits

    def _seen(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)
        if self._left > 0:
            self._left -= len(gradient)
            self.zero_gradients += int((gradient == 0).flatten(1).all(1).sum())
