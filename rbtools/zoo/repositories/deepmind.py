"""Wide and pre-activation ResNets of google-deepmind/deepmind-research (adversarial_robustness).

Gowal et al. 2020 and 2021, Rebuffi et al. 2021, Rade and Moosavi 2021, Pang et al. 2022, Wang et al. 2023,
Bartoldson et al. 2024 and others publish weights with the same tensor names, all for networks with Swish
(SiLU). Strided convolutions use TensorFlow's padding: one row and one column after the image, and none
before. RaWRN (Peng et al. 2023) has other sizes, and squeeze-and-excitation after the second convolution of a
block. MeanSparse (Amini et al. 2024) adds a layer before every activation and after every block.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rbtools.models import Shape
from rbtools.models.families import State, numbered, weight
from rbtools.models.resnet import ACTIVATIONS, stage

NAMES = (
    r"deepmind/(meansparse-)?(wrn-(?P<depth>\d+)-(?P<widen>\d+)|preactresnet(?P<blocks>18|34)|ra-wrn-70-16)"
)
EXAMPLES = ("deepmind/wrn-28-10", "deepmind/preactresnet18", "deepmind/ra-wrn-70-16")
BLOCKS = {"18": (2, 2, 2, 2), "34": (3, 4, 6, 3)}
RA_WRN = ((30, 31, 10), (96, 216, 432, 864))  # (blocks of each stage, widths of the stem and the stages)
SQUEEZE = 0.25  # channels of squeeze-and-excitation, as a share of the block's channels

CIFAR10 = ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616))
CIFAR100 = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


class MeanSparse(nn.Module):
    """Replaces values within `threshold` standard deviations of their channel's mean with this mean."""

    running_mean: Tensor
    running_var: Tensor
    threshold: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.zeros(channels))
        for name in ("threshold", "batch_num"):
            self.register_buffer(name, torch.tensor(0.0))
        self.register_buffer("flag_update_statistics", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        mean, deviation = (one.view(-1, 1, 1) for one in (self.running_mean, self.running_var.sqrt()))
        near = (x - mean).abs() < self.threshold * deviation
        return torch.where(near, mean, x)


class SqueezeExcite(nn.Module):
    """Scales channels by a sigmoid of two linear layers on the channels' means (Hu et al., CVPR 2018)."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.fc2(F.relu(self.fc1(x.mean((2, 3), keepdim=True))))
        return torch.sigmoid(scale) * x


def same_padding(x: Tensor, stride: int) -> Tensor:
    """Pads images for a 3x3 convolution of this stride (1 or 2), as TensorFlow's SAME padding does."""
    return F.pad(x, (1, 1, 1, 1) if stride == 1 else (0, 1, 0, 1))


def _sparse(channels: int, meansparse: bool) -> nn.Module:
    return MeanSparse(channels) if meansparse else nn.Identity()


class DeepMindBlock(nn.Module):
    """Two 3x3 convolutions. A shortcut convolution is applied to the activated input."""

    def __init__(
        self, channels_in: int, channels: int, stride: int, activation: str, squeeze: bool, meansparse: bool
    ) -> None:
        super().__init__()
        self.stride, self.activation = stride, ACTIVATIONS[activation]
        self.batchnorm_0 = nn.BatchNorm2d(channels_in)
        self.meansparse_0 = _sparse(channels_in, meansparse)
        self.conv_0 = nn.Conv2d(channels_in, channels, 3, stride, bias=False)
        self.batchnorm_1 = nn.BatchNorm2d(channels)
        self.meansparse_1 = _sparse(channels, meansparse)
        self.conv_1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.shortcut: nn.Conv2d | None = None
        if channels_in != channels:
            self.shortcut = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
        self.se = SqueezeExcite(channels, round(SQUEEZE * channels)) if squeeze else nn.Identity()
        self.meansparse_2 = _sparse(channels, meansparse)

    def forward(self, x: Tensor) -> Tensor:
        active = self.activation(self.meansparse_0(self.batchnorm_0(x)))
        beside = x if self.shortcut is None else self.shortcut(active)
        out = self.conv_0(same_padding(active, self.stride))
        out = self.se(self.conv_1(self.activation(self.meansparse_1(self.batchnorm_1(out)))))
        return self.meansparse_2(beside + out)


class DeepMindWideResNet(nn.Module):
    """Maps images (N, in_channels, H, W) to logits (N, classes).

    `blocks` are the numbers of blocks in the three stages, and `widths` the widths of the stem and the
    stages.
    """

    normalizations: ClassVar[Mapping[int, Any]] = {10: CIFAR10, 100: CIFAR100}

    def __init__(
        self,
        blocks: Sequence[int],
        widths: Sequence[int],
        *,
        classes: int,
        in_channels: int,
        activation: str,
        squeeze: bool,
        meansparse: bool,
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.init_conv = nn.Conv2d(in_channels, widths[0], 3, padding=1, bias=False)
        options = (activation, squeeze, meansparse)
        stages = zip(blocks, widths[:-1], widths[1:], (1, 2, 2), strict=True)
        self.layer = nn.Sequential(
            *(nn.Sequential(OrderedDict(block=stage(DeepMindBlock, *sizes, *options))) for sizes in stages)
        )
        self.batchnorm = nn.BatchNorm2d(widths[-1])
        self.meansparse_end = _sparse(widths[-1], meansparse)
        self.logits = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.layer(self.init_conv(images))
        x = self.activation(self.meansparse_end(self.batchnorm(x)))
        return self.logits(x.mean((2, 3)))


class DeepMindPreActBlock(nn.Module):
    """Two 3x3 convolutions. A shortcut is a 3x3 convolution of the block's input."""

    def __init__(self, channels_in: int, channels: int, stride: int, activation: str) -> None:
        super().__init__()
        self.stride, self.activation = stride, ACTIVATIONS[activation]
        self.batchnorm_0 = nn.BatchNorm2d(channels_in)
        self.conv_2d_1 = nn.Conv2d(channels_in, channels, 3, stride, bias=False)
        self.batchnorm_1 = nn.BatchNorm2d(channels)
        self.conv_2d_2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.shortcut: nn.Conv2d | None = None
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Conv2d(channels_in, channels, 3, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        beside = x if self.shortcut is None else self.shortcut(same_padding(x, self.stride))
        active = self.activation(self.batchnorm_0(x))
        out = self.conv_2d_1(same_padding(active, self.stride))
        return self.conv_2d_2(self.activation(self.batchnorm_1(out))) + beside


class DeepMindPreActResNet(nn.Module):
    """Maps images (N, in_channels, H, W) to logits (N, classes). `blocks` are the numbers per stage."""

    normalizations: ClassVar[Mapping[int, Any]] = {10: CIFAR10, 100: CIFAR100}

    def __init__(self, blocks: Sequence[int], *, classes: int, in_channels: int, activation: str) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.conv_2d = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
        channels = 64
        for number, count in enumerate(blocks):
            sizes = (count, channels, 64 << number, 2 if number else 1)
            setattr(self, f"layer_{number}", stage(DeepMindPreActBlock, *sizes, activation))
            channels = 64 << number
        self.batchnorm = nn.BatchNorm2d(channels)
        self.logits = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv_2d(images)
        for number in range(4):
            x = getattr(self, f"layer_{number}")(x)
        return self.logits(self.activation(self.batchnorm(x)).mean((2, 3)))


def variants(name: str) -> tuple[dict[str, str], ...]:
    """The possible activations, which tensor names and shapes do not determine."""
    return tuple({"activation": activation} for activation in ("silu", "relu"))


def build(match: re.Match[str], fields: Mapping[str, Any], classes: int, shape: Shape) -> nn.Module:
    """Build the network. WRN-28-10 has 36,479,194 parameters for 10 classes."""
    ends: dict[str, Any] = {"classes": classes, "in_channels": shape[0], "activation": fields["activation"]}
    if match["blocks"]:
        return DeepMindPreActResNet(BLOCKS[match["blocks"]], **ends)
    squeeze, meansparse = match["depth"] is None, match[1] is not None
    blocks, widths = RA_WRN
    if not squeeze:
        blocks, widen = ((int(match["depth"]) - 4) // 6,) * 3, int(match["widen"])
        widths = (16, 16 * widen, 32 * widen, 64 * widen)
    return DeepMindWideResNet(blocks, widths, **ends, squeeze=squeeze, meansparse=meansparse)


def names(state: State) -> Iterator[str]:
    """Yields the names for the number of blocks and the width of the first stage."""
    if "conv_2d.weight" in state:
        yield from (f"deepmind/preactresnet{blocks}" for blocks in BLOCKS)
    first = weight(state, "layer.0.block.0.conv_1.weight", 4)
    if first is not None and len(first) >= 16:
        before = "meansparse-" if "meansparse_end.running_mean" in state else ""
        count = len(numbered(state, r"layer\.0\.block\.(\d+)\.conv_1\.weight"))
        yield f"deepmind/{before}ra-wrn-70-16"
        yield f"deepmind/{before}wrn-{6 * count + 4}-{len(first) // 16}"
