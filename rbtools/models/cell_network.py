"""The NAS-Bench-201 network (Dong and Yang, 2020), with the tensor names of D-X-Y/AutoDL-Projects.

The network returns only the logits, whereas the original returns (features, logits).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rbtools.errors import RbError
from rbtools.models import Shape
from rbtools.spaces.nasbench201 import CONV1, CONV3, EDGES, NONE, POOL, SKIP, check_counts, ops_of


class ReLUConvBN(nn.Module):
    """Applies ReLU, a convolution without bias and BatchNorm: (N, C, H, W) -> (N, C', H/stride, W/stride)."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.op = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(channels_in, channels_out, kernel, stride, padding=kernel // 2, bias=False),
            nn.BatchNorm2d(channels_out),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.op(x)


class Zero(nn.Module):
    """The operation `none`: zeros of the input's shape, with a zero gradient.

    The original multiplies by 0, which turns inf into NaN. The output stays connected to the input in the
    autograd graph, so an attack on one of the 341 cells without a path gets a zero gradient and no error.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.masked_fill(x.new_ones((), dtype=torch.bool), 0.0)


def operation(op: int, channels: int) -> nn.Module:
    if op == NONE:
        return Zero()
    if op == SKIP:
        return nn.Identity()
    if op == POOL:
        return nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
    return ReLUConvBN(channels, channels, kernel=1 if op == CONV1 else 3)


def edges_to_compute(ops: Sequence[int]) -> tuple[bool, ...]:
    """For each of the 6 edges, True if the cell's output depends on the edge.

    An edge is not needed if it only adds zeros to other terms or has no path to the output. If a convolution
    is applied to a node of zeros, one `none` edge of this node is True, because BatchNorm turns the zeros
    into a constant.
    """
    incoming: dict[int, list[int]] = {1: [], 2: [], 3: []}
    for k, ((source, target), op) in enumerate(zip(EDGES, ops, strict=True)):
        of_zeros = source > 0 and not incoming[source]
        if op in (CONV1, CONV3) or (op != NONE and not of_zeros):
            incoming[target].append(k)
    used: set[int] = set()
    needed = {3}
    for node in (3, 2, 1):
        if node in needed:
            # A node whose incoming edges are all zero keeps its first edge, a `none`: node 0 is never zero.
            used.update(incoming[node] or [next(k for k, edge in enumerate(EDGES) if edge[1] == node)])
            needed.update(EDGES[k][0] for k in incoming[node])
    return tuple(k in used for k in range(len(EDGES)))


class CellModule(nn.Module):
    """A cell with four nodes: node j is the sum over i < j of op_ij(node i), and node 3 is the output.

    Edges that cannot change the output are not computed, even in training. Their BatchNorm statistics do not
    change, and the gradient of their weights is `None`.
    """

    def __init__(self, ops: Sequence[int], channels: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(operation(op, channels) for op in ops)
        self.plan = tuple(zip(EDGES, edges_to_compute(ops), strict=True))

    def forward(self, x: Tensor) -> Tensor:
        nodes = {0: x}
        for layer, ((source, target), used) in zip(self.layers, self.plan, strict=True):
            if used:
                term = layer(nodes[source])
                nodes[target] = nodes[target] + term if target in nodes else term
        return nodes[3]


class ResidualBlock(nn.Module):
    """Halves the resolution: (N, C, H, W) -> (N, C', H/2, W/2), for even H and W."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.conv_a = ReLUConvBN(channels_in, channels_out, kernel=3, stride=2)
        self.conv_b = ReLUConvBN(channels_out, channels_out, kernel=3)
        self.downsample = nn.Sequential(
            nn.AvgPool2d(2, stride=2), nn.Conv2d(channels_in, channels_out, 1, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.downsample(x) + self.conv_b(self.conv_a(x))


class Skeleton(nn.Module):
    """A network with a stem, three stages of `cells` cells, residual blocks between the stages, and a
    classifier.

    `cell` creates a cell with a given number of channels: `channels` in the first stage, twice as many in
    each later stage.
    """

    def __init__(
        self, cell: Callable[[int], nn.Module], channels: int, cells: int, classes: int, in_channels: int
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        )
        blocks: list[nn.Module] = []
        for stage in range(3):
            width = channels * 2**stage
            if stage:
                blocks.append(ResidualBlock(width // 2, width))
            blocks += [cell(width) for _ in range(cells)]
        self.cells = nn.ModuleList(blocks)
        self.lastact = nn.Sequential(nn.BatchNorm2d(4 * channels), nn.ReLU())
        self.classifier = nn.Linear(4 * channels, classes)

    def logits(self, images: Tensor, *of_cells: Tensor) -> Tensor:
        """Maps images (N, in_channels, H, W) to logits. Every cell also receives `of_cells`."""
        x = self.stem(images)
        for block in self.cells:
            x = block(x) if isinstance(block, ResidualBlock) else block(x, *of_cells)
        return self.classifier(self.lastact(x).mean((2, 3)))


class NASBench201Network(Skeleton):
    """The network of one architecture, which maps images (N, in_channels, H, W) to logits (N, classes).

    `ops` contains six operation numbers, for the edges 0→1, 0→2, 1→2, 0→3, 1→3, 2→3. The operations are
    numbered in the order none, skip_connect, nor_conv_1x1, nor_conv_3x3, avg_pool_3x3. `cells` is the number
    of cells in each of the three stages. `channels` is the number of channels in the first stage. Raises
    RbError if the sizes do not describe a network.
    """

    def __init__(
        self,
        ops: Sequence[int],
        *,
        channels: int = 16,
        cells: int = 5,
        classes: int = 10,
        in_channels: int = 3,
    ) -> None:
        check_counts(channels=channels, cells=cells, classes=classes)
        numbers = tuple(int(op) for op in ops)
        super().__init__(lambda width: CellModule(numbers, width), channels, cells, classes, in_channels)
        self.ops = numbers

    def forward(self, images: Tensor) -> Tensor:
        return self.logits(images)


def from_arch(arch: Mapping[str, Any], *, classes: int, shape: Shape) -> NASBench201Network:
    """Build the network of an architecture record with `str`, `index` or `name`, for images (C, H, W).

    Raises RbError if the record does not describe a network that can process images of this size.
    """
    in_channels, height, width = shape
    if height % 4 or width % 4:
        raise RbError(
            f"NAS-Bench-201 networks halve the image twice, which is impossible for {height}x{width} pixels."
            " Height and width must be multiples of 4: resize or crop the images, to 32x32 for example."
        )
    sizes = {name: arch[name] for name in ("channels", "cells") if name in arch}
    return NASBench201Network(ops_of(arch), classes=classes, in_channels=in_channels, **sizes)
