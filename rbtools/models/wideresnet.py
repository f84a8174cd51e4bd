"""Wide ResNet (Zagoruyko and Komodakis, 2016), named as the WideResNet of TRADES and MART.

Its shortcut convolutions (`convShortcut`) see the activated input, and identity shortcuts the input
itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from rbtools.models.resnet import Activation
from rbtools.spaces import zoo


class WideBlock(nn.Module):
    """BatchNorm, ReLU, 3x3 convolution, twice: (N, C, H, W) -> (N, C', H/stride, W/stride)."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.activation: Activation = F.relu
        self.bn1 = nn.BatchNorm2d(channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.convShortcut: nn.Conv2d | None = None
        if channels_in != channels_out:
            self.convShortcut = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = self.activation(self.bn1(x))
        beside = x if self.convShortcut is None else self.convShortcut(active)
        out: Tensor = self.conv2(self.activation(self.bn2(self.conv1(active)))) + beside
        return out


class NetworkBlock(nn.Module):
    """A stage of `count` blocks; the first has the stride."""

    def __init__(self, count: int, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        first = WideBlock(channels_in, channels_out, stride)
        rest = [WideBlock(channels_out, channels_out, 1) for _ in range(count - 1)]
        self.layer = nn.Sequential(first, *rest)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


class WideResNet(nn.Module):
    """Images (N, in_channels, H, W) -> logits (N, classes).

    `depth` is 6n+4 for n blocks in each of three stages, whose widths are 16, 32 and 64 times `widen`.
    No dropout. Average pooling adapts to the image; at 32 pixels it is the fixed 8x8 one.
    """

    def __init__(self, depth: int, widen: int, *, classes: int, in_channels: int = 3) -> None:
        super().__init__()
        count, widths = (depth - 4) // 6, [16 * widen, 32 * widen, 64 * widen]
        self.activation: Activation = F.relu
        self.conv1 = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        self.block1 = NetworkBlock(count, 16, widths[0], 1)
        self.block2 = NetworkBlock(count, widths[0], widths[1], 2)
        self.block3 = NetworkBlock(count, widths[1], widths[2], 2)
        self.bn1 = nn.BatchNorm2d(widths[2])
        self.fc = nn.Linear(widths[2], classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.block3(self.block2(self.block1(self.conv1(images))))
        logits: Tensor = self.fc(self.activation(self.bn1(x)).mean((2, 3)))
        return logits


def from_form(
    form: zoo.WideResNetForm, fields: Mapping[str, Any], *, classes: int, shape: tuple[int, int, int]
) -> WideResNet:
    """The zoo's Wide ResNet of that form: WRN-28-10 has 36,479,194 parameters for 10 classes."""
    return WideResNet(form.depth, form.widen, classes=classes, in_channels=shape[0])
