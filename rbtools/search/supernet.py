"""The weight-sharing supernet of NAS-Bench-201: every edge computes all five operations (DARTS).

The method is from Liu, Simonyan and Yang, ICLR 2019, and the space from Dong and Yang, ICLR 2020.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rbtools.models.cell_network import ReLUConvBN, Skeleton, operation
from rbtools.spaces.nasbench201 import EDGES, OPS


class MixedOp(nn.Module):
    """The weighted sum of all operations of an edge. Maps (N, C, H, W) and weights (5,) to (N, C, H, W).

    BatchNorm has no trainable scale, because such a scale could undo the effect of the weights.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.ops = nn.ModuleList(operation(number, channels) for number in range(len(OPS)))
        for op in self.ops:
            if isinstance(op, ReLUConvBN):
                op.op[2] = nn.BatchNorm2d(channels, affine=False)

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        terms = [weight * op(x) for weight, op in zip(weights, self.ops, strict=True)]
        return torch.stack(terms).sum(0)


class SearchCell(nn.Module):
    """A cell with four nodes and six mixed edges. Maps (N, C, H, W) and weights (6, 5) to (N, C, H, W)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.edges = nn.ModuleList(MixedOp(channels) for _ in EDGES)

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        nodes = {0: x}
        for edge, row, (source, target) in zip(self.edges, weights, EDGES, strict=True):
            term = edge(nodes[source], row)
            nodes[target] = nodes[target] + term if target in nodes else term
        return nodes[3]


class Supernet(Skeleton):
    """All cells of NAS-Bench-201 in one network: images (N, in_channels, H, W) -> logits (N, classes).

    All cells share the architecture parameters `alphas` (6, 5). The softmax over the parameters of an edge
    gives the weights of its operations, in the order of `rbtools.spaces.nasbench201.OPS`. If `mixture` (6, 5)
    is set, it replaces this softmax, for example by sampled weights.
    """

    def __init__(
        self, *, channels: int = 16, cells: int = 5, classes: int = 10, in_channels: int = 3
    ) -> None:
        super().__init__(SearchCell, channels, cells, classes, in_channels)
        self.alphas = nn.Parameter(torch.zeros(len(EDGES), len(OPS)))
        self.mixture: Tensor | None = None

    def forward(self, images: Tensor) -> Tensor:
        weights = self.alphas.softmax(1) if self.mixture is None else self.mixture
        return self.logits(images, weights)

    def weights(self) -> list[nn.Parameter]:
        return [parameter for name, parameter in self.named_parameters() if name != "alphas"]

    def genotype(self) -> tuple[int, ...]:
        """For each edge, the index in `OPS` of the operation with the largest weight (the first if equal)."""
        return tuple(int(op) for op in self.alphas.detach().argmax(1))
