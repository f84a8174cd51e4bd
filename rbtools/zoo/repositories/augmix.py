"""ResNeXt for small images (Xie et al., CVPR 2017) with the tensor names of google-research/augmix.

`augmix/resnext-29-4x32d` has 29 layers, and 4 groups of 32 channels in the first stage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from rbtools.models import Shape
from rbtools.models.families import State, numbered, weight
from rbtools.models.resnet import projection, stage

NAMES = r"augmix/resnext-(?P<depth>\d+)-(?P<groups>\d+)x(?P<width>\d+)d"
EXAMPLES = ("augmix/resnext-29-4x32d",)
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


class AugMixBottleneck(nn.Module):
    """A block of 1x1, grouped 3x3 and 1x1 convolutions and a shortcut."""

    expansion = 4

    def __init__(self, channels_in: int, planes: int, stride: int, groups: int, width: int) -> None:
        super().__init__()
        inner, channels = planes * width // 64 * groups, 4 * planes
        self.conv_reduce = nn.Conv2d(channels_in, inner, 1, bias=False)
        self.bn_reduce = nn.BatchNorm2d(inner)
        self.conv_conv = nn.Conv2d(inner, inner, 3, stride, padding=1, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(inner)
        self.conv_expand = nn.Conv2d(inner, channels, 1, bias=False)
        self.bn_expand = nn.BatchNorm2d(channels)
        self.downsample = projection(channels_in, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn_reduce(self.conv_reduce(x)))
        out = F.relu(self.bn(self.conv_conv(out)))
        return F.relu(self.bn_expand(self.conv_expand(out)) + self.downsample(x))


class AugMixResNeXt(nn.Module):
    """Maps images (N, in_channels, H, W) to logits. Each of the three stages has (depth - 2) / 9 blocks."""

    normalizations: ClassVar[Mapping[int, Any]] = {10: HALF, 100: HALF}

    def __init__(self, depth: int, groups: int, width: int, *, classes: int, in_channels: int) -> None:
        super().__init__()
        self.conv_1_3x3 = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
        self.bn_1 = nn.BatchNorm2d(64)
        channels = 64
        for number, planes in enumerate((64, 128, 256), 1):
            sizes = ((depth - 2) // 9, channels, planes, 2 if number > 1 else 1)
            setattr(self, f"stage_{number}", stage(AugMixBottleneck, *sizes, groups, width))
            channels = 4 * planes
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn_1(self.conv_1_3x3(images)))
        for number in (1, 2, 3):
            x = getattr(self, f"stage_{number}")(x)
        return self.classifier(x.mean((2, 3)))


def build(match: re.Match[str], fields: Mapping[str, Any], classes: int, shape: Shape) -> nn.Module:
    sizes = (int(match[name]) for name in ("depth", "groups", "width"))
    return AugMixResNeXt(*sizes, classes=classes, in_channels=shape[0])


def names(state: State) -> Iterator[str]:
    grouped = weight(state, "stage_1.0.conv_conv.weight", 4)
    if grouped is not None:
        count = len(numbered(state, r"stage_1\.(\d+)\.conv_conv\.weight"))
        width = grouped.shape[1]
        yield f"augmix/resnext-{9 * count + 2}-{len(grouped) // width}x{width}d"
