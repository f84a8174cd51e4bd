"""Wide ResNets whose stages have different depths and widths: Huang et al. 2021 (form r) and 2022 (form a).

`huang/wrn-r-d5-5-5-w320-640-512` is the network of Huang2021Exploring, and
`huang/wrn-a-d27-28-13-w160-448-384` the WRN-A4 of Huang2022Revisiting. The activation precedes each
convolution, also in shortcuts. The two forms have different tensor names, and in form a, each block with
stride 2 has a shortcut convolution.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from rbtools.models import Shape
from rbtools.models.families import State, numbered, weight
from rbtools.models.resnet import ACTIVATIONS, PreActivated, stage
from rbtools.zoo.repositories.deepmind import CIFAR10

NAMES = r"huang/wrn-(?P<form>[ra])-d(\d+)-(\d+)-(\d+)-w(\d+)-(\d+)-(\d+)"
EXAMPLES = ("huang/wrn-r-d5-5-5-w320-640-512", "huang/wrn-a-d27-28-13-w160-448-384")
STEM = 16
LAST_NORM = {"r": "bn1", "a": "norm1"}  # names of the last BatchNorm
ORDER = ("relu", "silu")


class HuangBlock(PreActivated):
    def __init__(self, channels_in: int, channels: int, stride: int, form: str, activation: str) -> None:
        super().__init__(channels_in, channels, stride, ACTIVATIONS[activation])
        beside = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
        self.shortcut: nn.Sequential | None = None
        self.convShortcut: nn.Conv2d | None = None
        if form == "a" and (stride != 1 or channels_in != channels):
            self.shortcut = nn.Sequential(beside)
        elif form == "r" and channels_in != channels:
            self.convShortcut = beside

    def forward(self, x: Tensor) -> Tensor:
        active = self.activation(self.bn1(x))
        convolution = self.shortcut or self.convShortcut
        return self.convolved(active) + (x if convolution is None else convolution(active))


class HuangWideResNet(nn.Module):
    """Maps images (N, in_channels, H, W) to logits (N, classes)."""

    def __init__(
        self,
        form: str,
        blocks: Sequence[int],
        widths: Sequence[int],
        *,
        classes: int,
        in_channels: int,
        activation: str,
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.stem_conv = nn.Conv2d(in_channels, STEM, 3, padding=1, bias=False)
        stages = zip(blocks, (STEM, *widths[:-1]), widths, (1, 2, 2), strict=True)
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(OrderedDict(layer=stage(HuangBlock, *sizes, form, activation)))
                for sizes in stages
            )
        )
        self.last_norm = LAST_NORM[form]
        setattr(self, self.last_norm, nn.BatchNorm2d(widths[-1]))
        self.fc = nn.Linear(widths[-1], classes)
        self.normalizations = {10: CIFAR10} if form == "a" else {}

    def forward(self, images: Tensor) -> Tensor:
        x = self.blocks(self.stem_conv(images))
        x = self.activation(getattr(self, self.last_norm)(x))
        return self.fc(x.mean((2, 3)))


def variants(name: str) -> tuple[dict[str, str], ...]:
    """The possible activations, which tensor names do not determine. Form a is published with SiLU."""
    order = reversed(ORDER) if "-a-" in name else ORDER
    return tuple({"activation": activation} for activation in order)


def build(match: re.Match[str], fields: Mapping[str, Any], classes: int, shape: Shape) -> nn.Module:
    sizes = [int(number) for number in match.groups()[1:]]
    ends: dict[str, Any] = {"classes": classes, "in_channels": shape[0], "activation": fields["activation"]}
    return HuangWideResNet(match["form"], sizes[:3], sizes[3:], **ends)


def names(state: State) -> Iterator[str]:
    """Yields the names for the numbers of blocks and the widths of the three stages, in both forms."""
    kernels = [weight(state, f"blocks.{number}.layer.0.conv2.weight", 4) for number in range(3)]
    blocks = [len(numbered(state, rf"blocks\.{n}\.layer\.(\d+)\.conv2\.weight")) for n in range(3)]
    widths = [len(kernel) for kernel in kernels if kernel is not None]
    if len(widths) == 3:
        sizes = f"d{'-'.join(map(str, blocks))}-w{'-'.join(map(str, widths))}"
        yield from (f"huang/wrn-{form}-{sizes}" for form in "ra")
