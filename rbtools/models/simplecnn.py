"""The four-layer network for MNIST: MNISTNet of advbench, which is PyTorch's own MNIST example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from rbtools.spaces import zoo


class SimpleCNN(nn.Module):
    """Images (N, C, H, W) -> logits (N, classes), which advbench's log-softmax would follow.

    Two 3x3 convolutions without padding, max-pooling, two linear layers. The first linear layer sees
    features of 12x12, as 28x28 images give them: those of larger images are averaged down to that.
    """

    def __init__(self, *, classes: int, shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = shape
        most = zoo.SimpleCNNForm.side
        self.size = (min((height - 4) // 2, most), min((width - 4) // 2, most))
        self.conv1 = nn.Conv2d(channels, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(64 * self.size[0] * self.size[1], 128)
        self.fc2 = nn.Linear(128, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(images)))), 2)
        if tuple(x.shape[2:]) != self.size:
            x = F.adaptive_avg_pool2d(x, self.size)
        x = F.relu(self.fc1(self.dropout1(x).flatten(1)))
        logits: Tensor = self.fc2(self.dropout2(x))
        return logits


def from_form(
    form: zoo.SimpleCNNForm, fields: Mapping[str, Any], *, classes: int, shape: tuple[int, int, int]
) -> SimpleCNN:
    """The zoo's network for MNIST: 1,199,882 parameters for 28x28x1 images and 10 classes."""
    return SimpleCNN(classes=classes, shape=shape)
