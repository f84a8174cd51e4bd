"""Wide ResNets with a learned activation, PSSiLU (Dai et al. 2021): `dai/pssilu-wrn-28-10`.

One activation is shared by all blocks, and its parameters stand in the file under the names of each. The rest
is the Wide ResNet of TRADES.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rbtools.models import Shape
from rbtools.models.families import Seen, State, numbered, weight
from rbtools.models.resnet import WideResNet, share_activation

NAMES = r"dai/pssilu-wrn-(?P<depth>\d+)-(?P<widen>\d+)"
EXAMPLES = ("dai/pssilu-wrn-28-10",)


class ShiftedSiLU(nn.Module):
    """x (sigmoid(|alpha| x) - |beta|) / (1 - |beta|), with both learned (PSSiLU)."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.full((1,), 1e-8))
        self.alpha = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        shift = self.beta.abs()
        return x * (torch.sigmoid(self.alpha.abs() * x) - shift) / (1 - shift)


# There are no variants: the activation is in the file.
def build(match: re.Match[str], fields: Mapping[str, Any], classes: int, shape: Shape) -> nn.Module:
    """The Wide ResNet with one activation module for the whole network."""
    network = WideResNet(int(match["depth"]), int(match["widen"]), classes=classes, in_channels=shape[0])
    share_activation(network, ShiftedSiLU())
    return network


def infer(state: State) -> Seen | None:
    """A Wide ResNet in TRADES' names with parameters of an activation."""
    stem, head = weight(state, "conv1.weight", 4), weight(state, "fc.weight", 2)
    first = weight(state, "block1.layer.0.conv1.weight", 4)
    if stem is None or head is None or first is None or "block1.layer.0.activation.alpha" not in state:
        return None
    count = len(numbered(state, r"block1\.layer\.(\d+)()\.conv1\.weight"))
    return f"dai/pssilu-wrn-{6 * count + 4}-{len(first) // 16}", head, stem
