"""Pre-activation ResNet (He et al., ECCV 2016) for small images, named as in locuslab/robust_overfitting.

A block's shortcut branches off after its first BatchNorm and ReLU if it is a convolution (which has no
BatchNorm of its own), and before them if it is the identity. In locuslab/fast_adversarial and networks
derived from it, the convolution takes the block's input, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from rbtools.models.resnet import Activation
from rbtools.spaces import zoo


class PreActBlock(nn.Module):
    """BatchNorm, ReLU, 3x3 convolution, twice: (N, C, H, W) -> (N, C', H/stride, W/stride)."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, shortcut: str) -> None:
        super().__init__()
        self.of_input = shortcut == "input"
        self.activation: Activation = F.relu
        self.bn1 = nn.BatchNorm2d(channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.shortcut: nn.Sequential | None = None
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels_in, channels_out, 1, stride, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        active = self.activation(self.bn1(x))
        beside = x if self.shortcut is None else self.shortcut(x if self.of_input else active)
        out: Tensor = self.conv2(self.activation(self.bn2(self.conv1(active)))) + beside
        return out


class PreActResNet(nn.Module):
    """Images (N, in_channels, H, W) -> logits (N, classes); four stages of blocks.

    With `final_norm`, BatchNorm (`bn`) and ReLU follow the last block; kuangliu/pytorch-cifar has
    neither. `shortcut`: what a shortcut convolution takes, "activation" or "input". Average pooling adapts to
    the image.
    """

    layer1: nn.Sequential
    layer2: nn.Sequential
    layer3: nn.Sequential
    layer4: nn.Sequential

    def __init__(
        self,
        blocks: Sequence[int],
        *,
        classes: int,
        in_channels: int = 3,
        width: int = 64,
        final_norm: bool = True,
        shortcut: str = "activation",
    ) -> None:
        super().__init__()
        self.activation: Activation = F.relu
        self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        channels = width
        for stage, count in enumerate(blocks):
            layers: list[nn.Module] = []
            for number in range(count):
                stride = 2 if stage and not number else 1
                layers.append(PreActBlock(channels, width << stage, stride, shortcut))
                channels = width << stage
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.bn = nn.BatchNorm2d(channels) if final_norm else None
        self.linear = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv1(images)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        if self.bn is not None:
            x = self.activation(self.bn(x))
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits


def from_form(
    form: zoo.PreActResNetForm, fields: Mapping[str, Any], *, classes: int, shape: tuple[int, int, int]
) -> PreActResNet:
    """The zoo's pre-activation ResNet of that form: 11,172,170 parameters for 10 classes, with final norm."""
    return PreActResNet(
        form.blocks,
        classes=classes,
        in_channels=shape[0],
        final_norm=form.final_norm,
        shortcut=fields.get("shortcut", "activation"),
    )
