"""The robust architecture of Peng et al. (BMVC 2023) for ImageNet: `peng/ra-wrn-101-2`.

A ResNet of bottleneck blocks with SiLU, grouped convolutions, squeeze-and-excitation behind the grouped
convolution, a stem without pooling, and no BatchNorm behind a block's first convolution. That for CIFAR is
`deepmind/ra-wrn-70-16`.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from rbtools.models import Shape
from rbtools.models.resnet import ACTIVATIONS
from rbtools.zoo.repositories.deepmind import SqueezeExcite, variants  # noqa: F401

NAMES = r"peng/ra-wrn-101-2"
EXAMPLES = ("peng/ra-wrn-101-2",)
# blocks of each stage, widths of the stem and the stages
BLOCKS, WIDTHS = (7, 11, 18, 1), (96, 512, 1024, 2016, 4032)
GROUPS = 2
NARROW, SQUEEZE = 0.25, 0.25  # ratios: a block's inner to its output channels; squeezed to input channels
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class Activation(nn.Module):
    """An activation by its name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = ACTIVATIONS[name]

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class PengBlock(nn.Module):
    """1x1 convolution, grouped 3x3 convolution with the stride, squeeze-and-excitation, 1x1 convolution."""

    def __init__(self, channels_in: int, channels: int, stride: int, activation: str) -> None:
        super().__init__()
        inner = round(NARROW * channels)
        middle = nn.Conv2d(inner, inner, 3, stride, padding=1, groups=GROUPS, bias=False)
        last = nn.Conv2d(inner, channels, 1, bias=False)
        layers = {
            "a": nn.Sequential(nn.Conv2d(channels_in, inner, 1, bias=False), Activation(activation)),
            "b": nn.Sequential(middle, nn.BatchNorm2d(inner), Activation(activation)),
            "se": SqueezeExcite(inner, round(SQUEEZE * channels_in)),
            "c": nn.Sequential(last, nn.BatchNorm2d(channels)),
        }
        self.F = nn.Sequential(OrderedDict(layers))
        self.proj: nn.Module | None = None
        if channels_in != channels or stride != 1:
            beside = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.proj = nn.Sequential(beside, nn.BatchNorm2d(channels))
        self.activation = Activation(activation)

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.F(x) + (x if self.proj is None else self.proj(x)))


class PengResNet(nn.Module):
    """Images (N, in_channels, H, W) -> logits (N, classes); every stage has stride 2, as the stem."""

    normalizations: ClassVar[Mapping[int, Any]] = {1000: IMAGENET}

    def __init__(
        self, blocks: Sequence[int], widths: Sequence[int], *, classes: int, in_channels: int, activation: str
    ) -> None:
        super().__init__()
        first = nn.Conv2d(in_channels, widths[0], 7, 2, padding=3, bias=False)
        stem = nn.Sequential(first, nn.BatchNorm2d(widths[0]), nn.ReLU())
        self.stem = nn.Sequential(OrderedDict(stem=nn.Sequential(OrderedDict(stem=stem))))
        stages: dict[str, nn.Module] = {}
        for number, count in enumerate(blocks, 1):
            layers: dict[str, nn.Module] = {}
            for place in range(count):
                inputs = widths[number] if place else widths[number - 1]
                block = PengBlock(inputs, widths[number], 1 if place else 2, activation)
                layers[f"stage{number}-block{place}"] = block
            stages[f"stage{number}"] = nn.Sequential(OrderedDict(layers))
        self.stages = nn.Sequential(OrderedDict(stages))
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.stages(self.stem(images)).mean((2, 3)))


def build(match: re.Match[str], fields: Mapping[str, Any], classes: int, shape: Shape) -> nn.Module:
    """The network of a name."""
    activation = str(fields.get("activation", "silu"))
    return PengResNet(BLOCKS, WIDTHS, classes=classes, in_channels=shape[0], activation=activation)


TELLS = {"": "stages.stage1.stage1-block0.F.a.0.weight"}
HEADS, STEMS = ("fc.weight",), ("stem.stem.stem.0.weight",)
