"""The single output of a network with two classes, to which the theorems on kernels apply."""

from __future__ import annotations

from torch import Tensor, nn


class Difference(nn.Module):
    """The difference f of a network's two logits. The cross-entropy is log(1 + exp(-y f)), where y is 1 for
    class 1 and -1 for class 0."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        return logits[:, 1:] - logits[:, :1]
