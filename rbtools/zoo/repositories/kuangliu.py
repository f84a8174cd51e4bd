"""Networks of kuangliu/pytorch-cifar that the zoo lacks: `kuangliu/densenet121`, `googlenet`, `senet18`,
`dpn92` ...

Small images, under the names of that repository. Average pooling adapts to the image; at 32 pixels it is
theirs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rbtools.models import Shape

DENSE = {
    "121": ((6, 12, 24, 16), 32),
    "169": ((6, 12, 32, 32), 32),
    "201": ((6, 12, 48, 32), 32),
    "161": ((6, 12, 36, 24), 48),
    "-cifar": ((6, 12, 24, 16), 12),
}
DUAL = {"26": (2, 2, 2, 2), "92": (3, 4, 20, 3)}
REG = {
    "x-200mf": ((1, 1, 4, 7), (24, 56, 152, 368), 8, 0.0),
    "x-400mf": ((1, 2, 7, 12), (32, 64, 160, 384), 16, 0.0),
    "y-400mf": ((1, 2, 7, 12), (32, 64, 160, 384), 16, 0.25),
}
AGGREGATED = ((2, 64), (4, 64), (8, 64), (32, 4))
EXAMPLES = (
    *(f"kuangliu/densenet{name}" for name in DENSE),
    *(f"kuangliu/dpn{name}" for name in DUAL),
    *(f"kuangliu/regnet{name}" for name in REG),
    *(f"kuangliu/resnext29-{groups}x{width}d" for groups, width in AGGREGATED),
    "kuangliu/googlenet",
    "kuangliu/lenet",
    "kuangliu/mobilenet",
    "kuangliu/senet18",
)
NAMES = "|".join(map(re.escape, EXAMPLES))


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class DenseLayer(nn.Module):
    """New channels before those of the input (Huang et al., CVPR 2017)."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), _conv(inputs, 4 * growth, 1)
        self.bn2, self.conv2 = nn.BatchNorm2d(4 * growth), _conv(4 * growth, growth, 3)

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv2(F.relu(self.bn2(self.conv1(F.relu(self.bn1(x))))))
        return torch.cat([new, x], 1)


class DenseTransition(nn.Module):
    """Fewer channels, and half the size."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.bn, self.conv = nn.BatchNorm2d(inputs), _conv(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.bn(x))), 2)


class CifarDenseNet(nn.Module):
    """Images (N, in_channels, H, W) -> logits (N, classes)."""

    def __init__(self, blocks: Sequence[int], growth: int, classes: int, in_channels: int) -> None:
        super().__init__()
        channels = 2 * growth
        self.conv1 = _conv(in_channels, channels, 3)
        for stage, count in enumerate(blocks, 1):
            layers = [DenseLayer(channels + growth * number, growth) for number in range(count)]
            setattr(self, f"dense{stage}", nn.Sequential(*layers))
            channels += growth * count
            if stage < len(blocks):
                setattr(self, f"trans{stage}", DenseTransition(channels, channels // 2))
                channels //= 2
        self.bn, self.linear = nn.BatchNorm2d(channels), nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv1(images)
        for stage in (1, 2, 3):
            x = getattr(self, f"trans{stage}")(getattr(self, f"dense{stage}")(x))
        return self.linear(F.relu(self.bn(self.get_submodule("dense4")(x))).mean((2, 3)))


class SqueezedPreActBlock(nn.Module):
    """A pre-activation block whose output is scaled by squeeze-and-excitation."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), _conv(inputs, outputs, 3, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(outputs), _conv(outputs, outputs, 3)
        changes = stride != 1 or inputs != outputs
        self.shortcut = nn.Sequential(_conv(inputs, outputs, 1, stride)) if changes else None
        self.fc1, self.fc2 = nn.Conv2d(outputs, outputs // 16, 1), nn.Conv2d(outputs // 16, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        beside = x if self.shortcut is None else self.shortcut(active)
        out = self.conv2(F.relu(self.bn2(self.conv1(active))))
        scale = torch.sigmoid(self.fc2(F.relu(self.fc1(out.mean((2, 3), keepdim=True)))))
        return out * scale + beside


class DualPathBlock(nn.Module):
    """Some channels are added as in a ResNet, `dense` others are appended (Chen et al., NeurIPS 2017)."""

    def __init__(self, inputs: int, inner: int, outputs: int, dense: int, stride: int, first: bool) -> None:
        super().__init__()
        self.outputs, whole = outputs, outputs + dense
        self.conv1, self.bn1 = _conv(inputs, inner, 1), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = _conv(inner, inner, 3, stride, 32), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = _conv(inner, whole, 1), nn.BatchNorm2d(whole)
        self.shortcut = _shortcut(inputs, whole, stride) if first else nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(out)))))
        x, d = self.shortcut(x), self.outputs
        return F.relu(torch.cat([x[:, :d] + out[:, :d], x[:, d:], out[:, d:]], 1))


class GroupedBlock(nn.Module):
    """1x1, grouped 3x3 and 1x1 convolutions beside a shortcut, with squeeze-and-excitation or not."""

    def __init__(
        self, inputs: int, inner: int, outputs: int, stride: int, groups: int, squeezed: int = 0
    ) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(inputs, inner, 1), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = _conv(inner, inner, 3, stride, groups), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = _conv(inner, outputs, 1), nn.BatchNorm2d(outputs)
        changes = stride != 1 or inputs != outputs
        self.shortcut = _shortcut(inputs, outputs, stride) if changes else nn.Sequential()
        self.se = ExcitedChannels(inner, squeezed) if squeezed else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return F.relu(self.bn3(self.conv3(self.se(out))) + self.shortcut(x))


class ExcitedChannels(nn.Module):
    """Squeeze-and-excitation."""

    def __init__(self, channels: int, squeezed: int, activation: Callable[[Tensor], Tensor] = F.relu) -> None:
        super().__init__()
        self.activation = activation
        self.se1, self.se2 = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.se2(self.activation(self.se1(x.mean((2, 3), keepdim=True)))))


class SeparableBlock(nn.Module):
    """A 3x3 convolution of each channel, and a 1x1 one (Howard et al. 2017)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(inputs, inputs, 3, stride, inputs), nn.BatchNorm2d(inputs)
        self.conv2, self.bn2 = _conv(inputs, outputs, 1), nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class StagedNetwork(nn.Module):
    """A convolution with BatchNorm, stages called `names`, and a linear layer on the means.

    A stage is one module or a sequence of them. `last` are the channels (in, out) of a 1x1 convolution
    (`conv2`, `bn2`) behind the stages.
    """

    def __init__(
        self,
        kernel: int,
        width: int,
        stages: Mapping[str, nn.Module | Sequence[nn.Module]],
        features: int,
        classes: int,
        in_channels: int,
        *,
        last: tuple[int, int] | None = None,
        activation: Callable[[Tensor], Tensor] = F.relu,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.conv1, self.bn1 = _conv(in_channels, width, kernel), nn.BatchNorm2d(width)
        self.names = list(stages)
        for name, blocks in stages.items():
            setattr(self, name, blocks if isinstance(blocks, nn.Module) else nn.Sequential(*blocks))
        self.conv2 = self.bn2 = None
        if last is not None:
            self.conv2, self.bn2 = _conv(*last, 1), nn.BatchNorm2d(last[1])
        self.linear = nn.Linear(features, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.activation(self.bn1(self.conv1(images)))
        for name in self.names:
            x = getattr(self, name)(x)
        if self.conv2 is not None and self.bn2 is not None:
            x = self.activation(self.bn2(self.conv2(x)))
        return self.linear(x.mean((2, 3)))


class CifarInception(nn.Module):
    """Four branches side by side (Szegedy et al., CVPR 2015), the 5x5 one as two 3x3 ones."""

    def __init__(self, inputs: int, *widths: int) -> None:
        super().__init__()
        one, three_in, three, five_in, five, pool = widths
        self.b1 = nn.Sequential(*_layers(inputs, (one, 1)))
        self.b2 = nn.Sequential(*_layers(inputs, (three_in, 1), (three, 3)))
        self.b3 = nn.Sequential(*_layers(inputs, (five_in, 1), (five, 3), (five, 3)))
        self.b4 = nn.Sequential(nn.MaxPool2d(3, 1, 1), *_layers(inputs, (pool, 1)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.b1(x), self.b2(x), self.b3(x), self.b4(x)], 1)


def _layers(inputs: int, *convolutions: tuple[int, int]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for outputs, kernel in convolutions:
        convolution = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)
        layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]
        inputs = outputs
    return layers


INCEPTIONS = {
    "a3": (192, 64, 96, 128, 16, 32, 32),
    "b3": (256, 128, 128, 192, 32, 96, 64),
    "a4": (480, 192, 96, 208, 16, 48, 64),
    "b4": (512, 160, 112, 224, 24, 64, 64),
    "c4": (512, 128, 128, 256, 24, 64, 64),
    "d4": (512, 112, 144, 288, 32, 64, 64),
    "e4": (528, 256, 160, 320, 32, 128, 128),
    "a5": (832, 256, 160, 320, 32, 128, 128),
    "b5": (832, 384, 192, 384, 48, 128, 128),
}


class CifarGoogLeNet(nn.Module):
    """Images (N, in_channels, H, W) -> logits (N, classes)."""

    def __init__(self, classes: int, in_channels: int) -> None:
        super().__init__()
        self.pre_layers = nn.Sequential(*_layers(in_channels, (192, 3)))
        for name, sizes in INCEPTIONS.items():
            setattr(self, name, CifarInception(*sizes))
        self.linear = nn.Linear(1024, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.pre_layers(images)
        for name in INCEPTIONS:
            x = F.max_pool2d(x, 3, 2, 1) if name in ("a4", "a5") else x
            x = getattr(self, name)(x)
        return self.linear(x.mean((2, 3)))


class CifarLeNet(nn.Module):
    """Images (N, in_channels, 32, 32) -> logits (N, classes).

    Without BatchNorm nothing in a file decides the normalisation: the repository's, or none as in robust
    training.
    """

    normalizations: ClassVar[Mapping[int, Any]] = {10: ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))}
    other_normalizations: ClassVar[Mapping[int, Any]] = {10: [None]}

    def __init__(self, classes: int, in_channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(in_channels, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


def build(match: re.Match[str], fields: Mapping[str, Any], classes: int, shape: Shape) -> nn.Module:
    """The network of a name."""
    name, ends = match[0].partition("/")[2], (classes, shape[0])
    if name.startswith("densenet"):
        return CifarDenseNet(*DENSE[name.removeprefix("densenet")], *ends)
    if name in ("googlenet", "lenet"):
        return CifarGoogLeNet(*ends) if name == "googlenet" else CifarLeNet(*ends)
    return _staged(name, ends)


def _staged(name: str, ends: tuple[int, int]) -> StagedNetwork:
    strides, before = (1, 2, 2, 2), 64
    stages: dict[str, list[nn.Module]] = {}
    if name == "senet18":
        for stage, stride in enumerate(strides, 1):
            width = 32 << stage
            first = SqueezedPreActBlock(before, width, stride)
            stages[f"layer{stage}"], before = [first, SqueezedPreActBlock(width, width, 1)], width
        return StagedNetwork(3, 64, stages, before, *ends)
    if name.startswith("dpn"):
        for stage, count in enumerate(DUAL[name.removeprefix("dpn")], 1):
            sizes, dense = (48 << stage, 128 << stage), (16, 32, 24, 128)[stage - 1]
            dual: list[nn.Module] = []
            for number in range(count):
                stride = strides[stage - 1] if not number else 1
                dual.append(DualPathBlock(before, *sizes, dense, stride, not number))
                before = sizes[1] + (number + 2) * dense
            stages[f"layer{stage}"] = dual
        return StagedNetwork(3, 64, stages, before, *ends)
    if name == "mobilenet":
        widths = (64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
        inputs = (32, *widths[:-1])
        halving = (1, 3, 5, 11)
        layers: list[nn.Module] = [
            SeparableBlock(a, b, 2 if place in halving else 1)
            for place, (a, b) in enumerate(zip(inputs, widths, strict=True))
        ]
        return StagedNetwork(3, 32, {"layers": layers}, 1024, *ends)
    if name.startswith("regnet"):
        depths, widths4, group, ratio = REG[name.removeprefix("regnet")]
        for stage, (count, width, stride) in enumerate(zip(depths, widths4, (1, 1, 2, 2), strict=True), 1):
            grouped: list[nn.Module] = []
            for number in range(count):
                squeezed, step = round(before * ratio), 1 if number else stride
                grouped.append(GroupedBlock(before, width, width, step, width // group, squeezed))
                before = width
            stages[f"layer{stage}"] = grouped
        return StagedNetwork(3, 64, stages, before, *ends)
    groups, width = (int(number) for number in name.removeprefix("resnext29-").removesuffix("d").split("x"))
    for stage in (1, 2, 3):
        inner = groups * width << (stage - 1)
        grouped = []
        for number in range(3):
            step = 2 if stage > 1 and not number else 1
            grouped.append(GroupedBlock(before, inner, 2 * inner, step, groups))
            before = 2 * inner
        stages[f"layer{stage}"] = grouped
    return StagedNetwork(1, 64, stages, before, *ends)


TELLS = {
    "densenet": "dense1.0.conv1.weight",
    "dpn": "layer1.0.shortcut.1.running_mean",
    "regnet": "layer4.0.conv3.weight",
    "resnext": "layer3.2.conv3.weight",
    "googlenet": "pre_layers.0.weight",
    "lenet": "fc3.weight",
    "mobilenet": "layers.12.conv2.weight",
    "senet": "layer1.0.fc2.bias",
}
HEADS, STEMS = ("linear.weight", "fc3.weight"), ("conv1.weight", "pre_layers.0.weight")
