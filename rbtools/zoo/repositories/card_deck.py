"""The networks of Diffenderfer et al. 2021 (CARD): a ResNet-18 of any width and a binary Wide PreActResNet.

`card/resnet18-w128` has torchvision's tensor names and a 3x3 convolution as its first layer.
`card/wide-preactresnet18-x2` has BatchNorm layers without weights, and its last layer is a 1x1 convolution
without bias. Its weights file contains the binary weights as ordinary numbers, and the scores of edge-popup,
which are ignored as in the authors' evaluation code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from rbtools.models import Shape
from rbtools.models.families import State, weight
from rbtools.models.resnet import FourStages, PreActivated, ResNet, projection, stage

NAMES = r"card/(resnet18-w(?P<width>\d+)|wide-preactresnet18-x(?P<widen>\d+))"
EXAMPLES = ("card/resnet18-w128", "card/wide-preactresnet18-x2")
NORMALIZATIONS = {
    10: ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
    100: ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


class CardBlock(PreActivated):
    """A block whose shortcut, a convolution or the identity, is applied to the activated input."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__(channels_in, channels, stride, affine=False)
        self.shortcut = projection(channels_in, channels, stride, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        active = self.activation(self.bn1(x))
        return self.convolved(active) + self.shortcut(active)


class CardWidePreActResNet(FourStages):
    """Maps images (N, in_channels, H, W) to logits (N, classes)."""

    def __init__(self, widen: int, *, classes: int, in_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
        channels = 64
        for number, width in enumerate((64, *(size * (widen + 1) for size in (64, 128, 256))), 1):
            setattr(self, f"layer{number}", stage(CardBlock, 2, channels, width, 1 if number == 1 else 2))
            channels = width
        self.bn1 = nn.BatchNorm2d(channels, affine=False)
        self.fc = nn.Conv2d(channels, classes, 1, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        x = self.through_stages(self.conv1(images))
        x = F.relu(self.bn1(x)).mean((2, 3), keepdim=True)
        return self.fc(x).flatten(1)


def build(match: re.Match[str], fields: Mapping[str, Any], classes: int, shape: Shape) -> nn.Module:
    ends: dict[str, Any] = {"classes": classes, "in_channels": shape[0]}
    network: Any
    if match["widen"]:
        network = CardWidePreActResNet(int(match["widen"]), **ends)
    else:
        network = ResNet((2, 2, 2, 2), width=int(match["width"]), **ends)
    network.normalizations = NORMALIZATIONS
    return network


def names(state: State) -> Iterator[str]:
    """Yields the names of the networks with these widths of the first layer and of the last stage."""
    stem, deep = weight(state, "conv1.weight", 4), weight(state, "layer4.1.conv2.weight", 4)
    if stem is not None and deep is not None:
        if len(deep) >= 512:
            yield f"card/wide-preactresnet18-x{len(deep) // 256 - 1}"
        yield f"card/resnet18-w{len(stem)}"
