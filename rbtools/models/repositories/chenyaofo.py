"""ResNets and VGGs of chenyaofo/pytorch-cifar-models: `chenyaofo/resnet20` to `resnet110`,
`chenyaofo/vgg11_bn` ...

The ResNets are those of the paper for CIFAR-10 (6n + 2 layers, 16 to 64 channels), with convolutions in their
shortcuts; the VGGs have three linear layers. They are for 32x32 images.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from rbtools.models.families.base import Inferred, State, numbered, weight
from rbtools.models.resnet import BasicBlock

NAMES = r"chenyaofo/(resnet(?P<depth>\d+)|vgg(?P<vgg>11|13|16|19)_bn)"
EXAMPLES = ("chenyaofo/resnet20", "chenyaofo/vgg16_bn")
CONVOLUTIONS = {"11": (1, 1, 2, 2, 2), "13": (2, 2, 2, 2, 2), "16": (2, 2, 3, 3, 3), "19": (2, 2, 4, 4, 4)}


class CifarResNet(nn.Module):
    """Images (N, in_channels, H, W) -> logits (N, classes); three stages of `count` blocks."""

    def __init__(self, count: int, *, classes: int, in_channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        channels = 16
        for stage in (1, 2, 3):
            width = 8 << stage
            first = BasicBlock(channels, width, 1 if stage == 1 else 2)
            rest = (BasicBlock(width, width, 1) for _ in range(count - 1))
            setattr(self, f"layer{stage}", nn.Sequential(first, *rest))
            channels = width
        self.fc = nn.Linear(64, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(images)))
        for stage in (1, 2, 3):
            x = getattr(self, f"layer{stage}")(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class ThreeLayerVGG(nn.Module):
    """Images (N, in_channels, 32, 32) -> logits (N, classes)."""

    def __init__(self, convolutions: tuple[int, ...], *, classes: int, in_channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for count, width in zip(convolutions, (64, 128, 256, 512, 512), strict=True):
            for _ in range(count):
                layers += [nn.Conv2d(in_channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
                in_channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        hidden = (nn.Linear(512, 512), nn.ReLU(), nn.Dropout(), nn.Linear(512, 512), nn.ReLU(), nn.Dropout())
        self.classifier = nn.Sequential(*hidden, nn.Linear(512, classes))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images).mean((2, 3)))
        return logits


def build(
    match: re.Match[str], fields: Mapping[str, Any], classes: int, shape: tuple[int, int, int]
) -> nn.Module:
    """The network of a name."""
    if match["vgg"]:
        return ThreeLayerVGG(CONVOLUTIONS[match["vgg"]], classes=classes, in_channels=shape[0])
    return CifarResNet((int(match["depth"]) - 2) // 6, classes=classes, in_channels=shape[0])


def infer(state: State) -> Inferred | None:
    """A ResNet of three stages from 16 channels on, or a VGG with three linear layers of 512."""
    stem, head = weight(state, "features.0.weight", 4), weight(state, "classifier.6.weight", 2)
    if stem is not None and head is not None and head.shape[1] == 512 and "features.1.running_mean" in state:
        total = sum(value.ndim == 4 for value in state.values())
        name = next((name for name, convolutions in CONVOLUTIONS.items() if sum(convolutions) == total), None)
        arch = {"space": "repo", "name": f"chenyaofo/vgg{name}_bn"}
        return None if name is None else Inferred(arch, len(head), stem.shape[1])
    stem, head = weight(state, "conv1.weight", 4), weight(state, "fc.weight", 2)
    if stem is None or head is None or len(stem) != 16 or "layer4.0.conv1.weight" in state:
        return None
    places = numbered(state, r"layer(\d)\.(\d+)\.conv2\.weight")
    counts = {sum(stage == wanted for stage, _ in places) for wanted in (1, 2, 3)}
    convolved = any(f"layer2.0.{name}.0.weight" in state for name in ("downsample", "shortcut"))
    if len(counts) != 1 or 0 in counts or not convolved:
        return None
    return Inferred(
        {"space": "repo", "name": f"chenyaofo/resnet{6 * counts.pop() + 2}"}, len(head), stem.shape[1]
    )
