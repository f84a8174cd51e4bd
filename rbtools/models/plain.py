"""Networks without shortcuts: MNISTNet of advbench, and VGG for small images as in kuangliu/pytorch-cifar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from rbtools.models import Shape
from rbtools.spaces import zoo


class SimpleCNN(nn.Module):
    """MNISTNet without its log-softmax: images (N, C, H, W) -> logits (N, classes).

    The network has two 3x3 convolutions without padding, max-pooling and two linear layers. Features larger
    than 12x12, their size for 28x28 images, are averaged to 12x12.
    """

    def __init__(self, *, classes: int, shape: Shape) -> None:
        super().__init__()
        channels, height, width = shape
        largest = zoo.SimpleCNNForm.side
        self.feature_size = (min((height - 4) // 2, largest), min((width - 4) // 2, largest))
        self.conv1 = nn.Conv2d(channels, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(64 * self.feature_size[0] * self.feature_size[1], 128)
        self.fc2 = nn.Linear(128, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.conv1(images))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        if x.shape[2:] != self.feature_size:
            x = F.adaptive_avg_pool2d(x, self.feature_size)
        x = F.relu(self.fc1(self.dropout1(x).flatten(1)))
        return self.fc2(self.dropout2(x))


def simplecnn(form: zoo.SimpleCNNForm, fields: Mapping[str, Any], *, classes: int, shape: Shape) -> SimpleCNN:
    """Build a SimpleCNN, which has 1,199,882 parameters for 28x28x1 images and 10 classes."""
    return SimpleCNN(classes=classes, shape=shape)


class VGG(nn.Module):
    """VGG with BatchNorm (Simonyan and Zisserman, ICLR 2015): images (N, in_channels, H, W) -> logits.

    Each of the five stages has `convs[i]` 3x3 convolutions to `widths[i]` channels, with bias, BatchNorm and
    ReLU, and ends with max-pooling. Global average pooling and one linear layer follow. Pooling rounds odd
    side lengths up (28, 14, 7, 4, 2, 1 pixels), because small images would otherwise shrink to nothing.
    """

    def __init__(
        self, convs: Sequence[int], widths: Sequence[int], *, classes: int, in_channels: int
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = in_channels
        for count, width in zip(convs, widths, strict=True):
            for _ in range(count):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2, 2, ceil_mode=True))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images).mean((2, 3)))


def vgg(form: zoo.VGGForm, fields: Mapping[str, Any], *, classes: int, shape: Shape) -> VGG:
    """Build a VGG. VGG-19 has 20,040,522 parameters for 10 classes."""
    return VGG(form.convs, form.widths, classes=classes, in_channels=shape[0])
