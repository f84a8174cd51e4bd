"""Networks of kuangliu/pytorch-cifar with few parameters: `kuangliu/mobilenetv2`, `shufflenetg2`,
`shufflenetv2-1`, `efficientnetb0`, `pnasneta`, `dla`, `simpledla` ...

Small images, under the names of that repository; average pooling adapts to the image as in `kuangliu`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rbtools.models import Shape
from rbtools.models.resnet import BasicBlock
from rbtools.zoo.repositories.kuangliu import ExcitedChannels, StagedNetwork, _conv, _shortcut

# Expansion, channels, blocks, stride of the first one, kernel.
INVERTED = {
    "mobilenetv2": (
        (1, 16, 1, 1, 3),
        (6, 24, 2, 1, 3),
        (6, 32, 3, 2, 3),
        (6, 64, 4, 2, 3),
        (6, 96, 3, 1, 3),
        (6, 160, 3, 2, 3),
        (6, 320, 1, 1, 3),
    ),
    "efficientnetb0": (
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    ),
}
GROUPED = {"shufflenetg2": (2, (200, 400, 800)), "shufflenetg3": (3, (240, 480, 960))}
SHUFFLED = {
    "shufflenetv2-0.5": (48, 96, 192, 1024),
    "shufflenetv2-1": (116, 232, 464, 1024),
    "shufflenetv2-1.5": (176, 352, 704, 1024),
    "shufflenetv2-2": (224, 488, 976, 2048),
}
CELLS = {"pnasneta": 44, "pnasnetb": 32}  # channels of the first stage
EXAMPLES = tuple(
    f"kuangliu/{name}" for name in chain(INVERTED, GROUPED, SHUFFLED, CELLS, ("dla", "simpledla"))
)
NAMES = "|".join(map(re.escape, EXAMPLES))


class InvertedBlock(nn.Module):
    """1x1, depthwise and 1x1 convolutions (MobileNetV2, Sandler et al., CVPR 2018).

    The `efficient` form (Tan and Le, ICML 2019) has SiLU and squeeze-and-excitation. It leaves out a first
    convolution that does not expand, which has its tensors all the same, and adds the input only where
    the channels agree; the other form adds it through a convolution.
    """

    def __init__(
        self, inputs: int, outputs: int, expansion: int, stride: int, kernel: int, efficient: bool
    ) -> None:
        super().__init__()
        inner, keeps = expansion * inputs, stride == 1
        self.conv1, self.bn1 = _conv(inputs, inner, 1), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = _conv(inner, inner, kernel, stride, inner), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = _conv(inner, outputs, 1), nn.BatchNorm2d(outputs)
        self.activation = F.silu if efficient else F.relu
        self.se = ExcitedChannels(inner, inputs // 4, F.silu) if efficient else nn.Identity()
        self.expands = expansion > 1 or not efficient
        self.adds = keeps and (inputs == outputs or not efficient)
        convolved = self.adds and inputs != outputs
        self.shortcut = _shortcut(inputs, outputs, 1) if convolved else nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        out = self.activation(self.bn1(self.conv1(x))) if self.expands else x
        out = self.bn3(self.conv3(self.se(self.activation(self.bn2(self.conv2(out))))))
        return out + self.shortcut(x) if self.adds else out


class GroupShuffleBlock(nn.Module):
    """Grouped 1x1 convolutions whose channels are shuffled (ShuffleNet, Zhang et al., CVPR 2018).

    With stride 2 the pooled input is appended, else the input is added.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        inner, self.stride = outputs // 4, stride
        self.groups = 1 if inputs == 24 else groups  # groups of the first convolution: 1 on the stem's output
        self.conv1, self.bn1 = _conv(inputs, inner, 1, groups=self.groups), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = _conv(inner, inner, 3, stride, inner), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = _conv(inner, outputs, 1, groups=groups), nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.channel_shuffle(F.relu(self.bn1(self.conv1(x))), self.groups)
        out = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(out)))))
        if self.stride == 1:
            return F.relu(out + x)
        return F.relu(torch.cat([out, F.avg_pool2d(x, 3, 2, 1)], 1))


class SplitShuffleBlock(nn.Module):
    """Half of the channels are convolved (ShuffleNetV2, Ma et al., ECCV 2018)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.conv1, self.bn1 = _conv(half, half, 1), nn.BatchNorm2d(half)
        self.conv2, self.bn2 = _conv(half, half, 3, 1, half), nn.BatchNorm2d(half)
        self.conv3, self.bn3 = _conv(half, half, 1), nn.BatchNorm2d(half)

    def forward(self, x: Tensor) -> Tensor:
        kept, out = x.chunk(2, 1)
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(out)))))
        return torch.channel_shuffle(torch.cat([kept, F.relu(self.bn3(self.conv3(out)))], 1), 2)


class HalvingShuffleBlock(nn.Module):
    """Two branches of convolutions with stride 2, side by side."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        half = outputs // 2
        self.conv1, self.bn1 = _conv(inputs, inputs, 3, 2, inputs), nn.BatchNorm2d(inputs)
        self.conv2, self.bn2 = _conv(inputs, half, 1), nn.BatchNorm2d(half)
        self.conv3, self.bn3 = _conv(inputs, half, 1), nn.BatchNorm2d(half)
        self.conv4, self.bn4 = _conv(half, half, 3, 2, half), nn.BatchNorm2d(half)
        self.conv5, self.bn5 = _conv(half, half, 1), nn.BatchNorm2d(half)

    def forward(self, x: Tensor) -> Tensor:
        left = F.relu(self.bn2(self.conv2(self.bn1(self.conv1(x)))))
        right = self.bn4(self.conv4(F.relu(self.bn3(self.conv3(x)))))
        right = F.relu(self.bn5(self.conv5(right)))
        return torch.channel_shuffle(torch.cat([left, right], 1), 2)


class DepthwiseNorm(nn.Module):
    """A convolution of each channel by itself, and BatchNorm."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, outputs, kernel, stride, inputs)
        self.bn1 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn1(self.conv1(x))


class PoolingCell(nn.Module):
    """A depthwise 7x7 convolution and max-pooling are added (PNASNet, Liu et al., ECCV 2018).

    The `wide` form has depthwise 3x3 and 5x5 convolutions besides, and joins two sums by a 1x1 convolution.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, wide: bool) -> None:
        super().__init__()
        self.stride, self.wide = stride, wide
        for number, kernel in enumerate((7, 3, 5) if wide else (7,), 1):
            setattr(self, f"sep_conv{number}", DepthwiseNorm(inputs, outputs, kernel, stride))
        if stride == 2:
            self.conv1, self.bn1 = _conv(inputs, outputs, 1), nn.BatchNorm2d(outputs)
        if wide:
            self.conv2, self.bn2 = _conv(2 * outputs, outputs, 1), nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.max_pool2d(x, 3, self.stride, 1)
        if self.stride == 2:
            pooled = self.bn1(self.conv1(pooled))
        first = self.get_submodule("sep_conv1")(x)
        if not self.wide:
            return F.relu(first + pooled)
        second, third = (self.get_submodule(f"sep_conv{number}")(x) for number in (2, 3))
        sums = torch.cat([F.relu(first + second), F.relu(pooled + third)], 1)
        return F.relu(self.bn2(self.conv2(sums)))


class JoinedNodes(nn.Module):
    """A 1x1 convolution on several nodes' channels."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv, self.bn = _conv(inputs, outputs, 1), nn.BatchNorm2d(outputs)

    def forward(self, nodes: list[Tensor]) -> Tensor:
        return F.relu(self.bn(self.conv(torch.cat(nodes, 1))))


class AggregationTree(nn.Module):
    """Blocks whose outputs one node joins (deep layer aggregation, Yu et al., CVPR 2018)."""

    def __init__(self, inputs: int, outputs: int, level: int, stride: int) -> None:
        super().__init__()
        self.levels = [f"level_{number}" for number in reversed(range(1, level))]
        self.root = JoinedNodes((2 if level == 1 else level + 2) * outputs, outputs)
        for number, name in zip(reversed(range(1, level)), self.levels, strict=True):
            setattr(self, name, AggregationTree(inputs, outputs, number, stride))
        self.prev_root = BasicBlock(inputs, outputs, stride) if level > 1 else None
        before, first = (inputs, stride) if level == 1 else (outputs, 1)
        self.left_node = BasicBlock(before, outputs, first)
        self.right_node = BasicBlock(outputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        nodes = [] if self.prev_root is None else [self.prev_root(x)]
        for name in [*self.levels, "left_node", "right_node"]:
            x = getattr(self, name)(x)
            nodes.append(x)
        return self.root(nodes)


class BinaryTree(nn.Module):
    """The simple form: two trees of one level less, or blocks, in a row, joined."""

    def __init__(self, inputs: int, outputs: int, level: int, stride: int) -> None:
        super().__init__()
        self.root = JoinedNodes(2 * outputs, outputs)
        sizes = ((inputs, stride), (outputs, 1))
        left, right = (
            BasicBlock(before, outputs, step) if level == 1 else BinaryTree(before, outputs, level - 1, step)
            for before, step in sizes
        )
        self.left_tree, self.right_tree = left, right

    def forward(self, x: Tensor) -> Tensor:
        left = self.left_tree(x)
        return self.root([left, self.right_tree(left)])


class AggregationNetwork(nn.Module):
    """Images (N, in_channels, H, W) -> logits (N, classes): three convolutions and four trees."""

    def __init__(self, tree: type[AggregationTree | BinaryTree], classes: int, in_channels: int) -> None:
        super().__init__()
        self.base, self.layer1, self.layer2 = (
            nn.Sequential(_conv(before, width, 3), nn.BatchNorm2d(width), nn.ReLU())
            for before, width in ((in_channels, 16), (16, 16), (16, 32))
        )
        self.layer3, self.layer4 = tree(32, 64, 1, 1), tree(64, 128, 2, 2)
        self.layer5, self.layer6 = tree(128, 256, 2, 2), tree(256, 512, 1, 2)
        self.linear = nn.Linear(512, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.base(images)))
        x = self.layer6(self.layer5(self.layer4(self.layer3(x))))
        return self.linear(x.mean((2, 3)))


def build(match: re.Match[str], fields: Mapping[str, Any], classes: int, shape: Shape) -> nn.Module:
    """The network of a name."""
    name, ends = match[0].partition("/")[2], (classes, shape[0])
    if name in ("dla", "simpledla"):
        return AggregationNetwork(AggregationTree if name == "dla" else BinaryTree, *ends)
    if name in INVERTED:
        layers = {"layers": list(_inverted(name))}
        if name == "mobilenetv2":
            return StagedNetwork(3, 32, layers, 1280, *ends, last=(320, 1280))
        return StagedNetwork(3, 32, layers, 320, *ends, activation=F.silu)
    if name in CELLS:
        width = CELLS[name]
        return StagedNetwork(3, width, _cells(width, name == "pnasnetb"), 4 * width, *ends)
    if name in GROUPED:
        groups, widths = GROUPED[name]
        stages = _shuffled(
            widths,
            lambda before, width: GroupShuffleBlock(before, width - before, 2, groups),
            lambda width: GroupShuffleBlock(width, width, 1, groups),
        )
        return StagedNetwork(1, 24, stages, widths[-1], *ends)
    *splits, last = SHUFFLED[name]
    stages = _shuffled(splits, HalvingShuffleBlock, SplitShuffleBlock)
    return StagedNetwork(3, 24, stages, last, *ends, last=(splits[-1], last))


def _shuffled(
    widths: Sequence[int], first: Callable[[int, int], nn.Module], block: Callable[[int], nn.Module]
) -> dict[str, list[nn.Module]]:
    """Three stages: one block that halves the image, and 3, 7 and 3 others."""
    sizes = enumerate(zip((24, *widths[:-1]), widths, (3, 7, 3), strict=True), 1)
    return {
        f"layer{number}": [first(before, width), *(block(width) for _ in range(count))]
        for number, (before, width, count) in sizes
    }


def _inverted(name: str) -> Iterator[nn.Module]:
    before = 32
    for expansion, width, count, stride, kernel in INVERTED[name]:
        for number in range(count):
            step = 1 if number else stride
            yield InvertedBlock(before, width, expansion, step, kernel, name == "efficientnetb0")
            before = width


def _cells(width: int, wide: bool) -> dict[str, nn.Module | list[nn.Module]]:
    stages: dict[str, nn.Module | list[nn.Module]] = {}
    for number in range(3):
        now = width << number
        if number:
            stages[f"layer{2 * number}"] = PoolingCell(now // 2, now, 2, wide)
        stages[f"layer{2 * number + 1}"] = [PoolingCell(now, now, 1, wide) for _ in range(6)]
    return stages


TELLS = {
    "mobilenetv2": "layers.0.shortcut.0.weight",
    "efficientnet": "layers.0.se.se1.weight",
    "shufflenetg": "layer3.3.conv3.weight",
    "shufflenetv2": "layer1.0.conv5.weight",
    "pnasnet": "layer5.5.sep_conv1.conv1.weight",
    "dla": "layer4.level_1.root.conv.weight",
    "simpledla": "layer4.left_tree.root.conv.weight",
}
HEADS, STEMS = ("linear.weight",), ("conv1.weight", "base.0.weight")
