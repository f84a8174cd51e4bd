"""What a search costs and where it is blind: passes through a model, and gradients that are zero."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class CountingModel(nn.Module):
    """A model that counts the images that go forward through it and backward, and zero gradients.

    `zero_gradients` are counted in the first backward pass of each example (`begin`): what has
    no gradient at its start does not move, which looks like robustness. `chunk_size`: how many images it
    takes at once; attacks send more through in pieces, and without gradients it does that itself. `decides`:
    the model that this one only searches for; it is asked whether points are really broken (`confirm`).
    """

    confirm: Callable[[Tensor, Tensor], Tensor] | None

    def __init__(
        self, model: nn.Module, chunk_size: int | None = None, decides: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.model, self.chunk_size, self.decides = model, chunk_size, decides
        self.confirm = None if decides is None else self._confirmed
        self.forwards = self.backwards = self.zero_gradients = 0
        self._left = 0

    def begin(self, count: int) -> None:
        """Other examples come now, so many."""
        self._left = count

    def forward(self, images: Tensor) -> Tensor:
        self.forwards += len(images)
        if not (images.requires_grad and torch.is_grad_enabled()):
            pieces = images.split(self.chunk_size or max(len(images), 1))
            return torch.cat([self.model(piece) for piece in pieces])
        inputs = images.view_as(images)
        inputs.register_hook(self._seen)
        logits: Tensor = self.model(inputs)
        return logits

    def _confirmed(self, points: Tensor, labels: Tensor) -> Tensor:
        """Which points (N, ...) the model that decides classifies wrong, too: bool (N,)."""
        assert self.decides is not None
        self.forwards += len(points)
        with torch.no_grad():
            pieces = points.split(self.chunk_size or max(len(points), 1))
            wrong: Tensor = torch.cat([self.decides(piece).argmax(1) for piece in pieces]) != labels
        return wrong

    def _seen(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)
        if self._left > 0:
            self._left -= len(gradient)
            self.zero_gradients += int((gradient == 0).flatten(1).all(1).sum())
