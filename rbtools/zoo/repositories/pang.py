"""Wide ResNets with a cosine head (Pang et al. 2020, hypersphere embedding): `pang/wrn-34-20`.

Features and the rows of the last layer have length 1. The file looks like a Wide ResNet of TRADES without a
bias, so only a name identifies it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from rbtools.errors import RbError
from rbtools.models import Shape
from rbtools.models.families import State, numbered, weight
from rbtools.models.resnet import WideResNet

NAMES = r"pang/wrn-(?P<depth>\d+)-(?P<widen>\d+)"
EXAMPLES = ()


class CosineWideResNet(WideResNet):
    """Logits are cosines between features and the rows of `fc`."""

    normalizations: ClassVar[Mapping[int, Any]] = {10: ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616))}

    def __init__(self, depth: int, widen: int, *, classes: int, in_channels: int = 3) -> None:
        super().__init__(depth, widen, classes=classes, in_channels=in_channels)
        self.fc = nn.Linear(64 * widen, classes, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        x = self.block3(self.block2(self.block1(self.conv1(images))))
        features = F.normalize(F.relu(self.bn1(x)).mean((2, 3)))
        return F.linear(features, F.normalize(self.fc.weight))


def build(match: re.Match[str], fields: Mapping[str, Any], classes: int, shape: Shape) -> nn.Module:
    """The network of a name."""
    return CosineWideResNet(int(match["depth"]), int(match["widen"]), classes=classes, in_channels=shape[0])


def infer(state: State) -> None:
    """Raise RbError for a Wide ResNet without a bias: a cosine head looks the same."""
    first = weight(state, "block1.layer.0.conv1.weight", 4)
    if first is None or "fc.weight" not in state or "fc.bias" in state or len(first) % 16:
        return
    count = len(numbered(state, r"block1\.layer\.(\d+)()\.conv1\.weight"))
    name = f"{6 * count + 4}-{len(first) // 16}"
    raise RbError(
        f"The checkpoint is a Wide ResNet {name} whose last layer has no bias. Either its logits are"
        f" cosines (Pang et al. 2020), then say --arch repo:pang/wrn-{name}, or that layer is linear, then"
        " say --arch python:MODULE:FUNCTION with a function of yours that builds it."
    )
