"""Small networks whose shape and weights are drawn, for tests of certification. No training."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class DrawnNetwork(nn.Module):
    """A network of a few layers: convolutions with BatchNorm, skips, pooling, and linear layers.

    The kinds of its layers, their widths and their weights follow from the seed. Images (N, C, H, W) of
    `shape` -> logits (N, classes).
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)

        def number(low: int, high: int) -> int:
            return int(torch.randint(low, high + 1, (), generator=draw))

        self.shape = (number(1, 2), number(4, 6), number(4, 6))
        self.classes = number(2, 5)
        channels = self.shape[0]
        self.kinds: list[str] = []
        self.layers = nn.ModuleList()
        for _ in range(number(1, 3)):
            width, kernel = number(2, 4), number(1, 3)
            stride = number(1, 2)
            layer = nn.Sequential(
                nn.Conv2d(channels, width, kernel, stride, kernel // 2, bias=bool(number(0, 1))),
                nn.BatchNorm2d(width),
            )
            self.kinds.append(("plain", "skip", "branches")[number(0, 2)])
            self.layers.append(layer)
            channels = 2 * width if self.kinds[-1] == "branches" else width
        self.pool = ("average", "max", "mean", "none")[number(0, 3)]
        features = self._features(torch.zeros(2, *self.shape))
        self.hidden = nn.Linear(features.shape[1], number(3, 8)) if number(0, 1) else None
        self.last = nn.Linear(self.hidden.out_features if self.hidden else features.shape[1], self.classes)
        with torch.no_grad():
            for name, values in [*self.named_parameters(), *self.named_buffers()]:
                if values.is_floating_point():
                    low, high = (0.5, 1.5) if "var" in name or "1.weight" in name else (-0.6, 0.6)
                    values.copy_(torch.rand(values.shape, generator=draw) * (high - low) + low)
        self.eval().requires_grad_(False)

    def _features(self, x: Tensor) -> Tensor:
        self.eval()
        for kind, layer in zip(self.kinds, self.layers, strict=True):
            out = layer(x)
            if kind == "skip" and out.shape == x.shape:
                out = out + x
            x = torch.cat([F.relu(out), -0.5 * out], dim=1) if kind == "branches" else F.relu(out)
        if self.pool == "mean":
            return x.mean((2, 3))
        if self.pool != "none" and min(x.shape[2:]) > 1:
            x = F.avg_pool2d(x, 2) if self.pool == "average" else F.max_pool2d(x, 2, 1)
        return x.flatten(1)

    def forward(self, images: Tensor) -> Tensor:
        x = self._features((images - 0.4) / 0.3)
        if self.hidden is not None:
            x = F.relu(self.hidden(x))
        logits: Tensor = self.last(x)
        return logits


def drawn_images(network: DrawnNetwork, count: int, seed: int = 0) -> Tensor:
    """Images in [0, 1], some of whose pixels are 0 or 1."""
    draw = torch.Generator().manual_seed(seed)
    return (torch.rand(count, *network.shape, generator=draw) * 1.4 - 0.2).clamp(0, 1)


def points_in_ball(images: Tensor, eps: float, norm: str, count: int, seed: int = 0) -> Tensor:
    """Points (count, N, ...) in [0, 1] within eps of images (N, ...): corners and random ones."""
    draw = torch.Generator().manual_seed(seed)
    moves = torch.rand(count, *images.shape, generator=draw) * 2 - 1
    moves[::2] = moves[::2].sign()
    if norm == "linf":
        moves = moves * eps
    else:
        moves = moves / moves.flatten(2).norm(dim=2).view(count, -1, 1, 1, 1) * eps * (1 - 1e-6)
    return (images + moves).clamp(0, 1)
