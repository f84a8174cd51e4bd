"""XCiT (El-Nouby et al., NeurIPS 2021) as trained by Debenedetti et al. 2022 and built by timm.

The patches have 16 pixels per side. For small images (`stem` "cifar"), the first two convolutions of the
patch embedding have stride 1, so the patches have 4 pixels per side.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from rbtools.models import Shape
from rbtools.models.families import State
from rbtools.zoo.libraries import import_timm

NAMES = r"debenedetti/xcit-(?P<size>[sml])12"
EXAMPLES = ("debenedetti/xcit-s12",)
SIZES = {"s": (384, 8), "m": (512, 8), "l": (768, 16)}  # width and heads
DEPTH = 12
SMALL_STRIDES = (0, 2)  # convolutions of the patches that have stride 1 for small images
NORMALIZATIONS = {
    10: ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)),
    100: ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    1000: None,
}


def variants(name: str) -> tuple[dict[str, str], ...]:
    """The possible stems, whose strides tensor names and shapes do not determine."""
    return ({"stem": "imagenet"}, {"stem": "cifar"})


def build(match: re.Match[str], fields: Mapping[str, Any], classes: int, shape: Shape) -> nn.Module:
    width, heads = SIZES[match["size"]]
    network: Any = import_timm().models.xcit.Xcit(
        patch_size=16,
        in_chans=shape[0],
        num_classes=classes,
        embed_dim=width,
        depth=DEPTH,
        num_heads=heads,
        eta=1.0,
        tokens_norm=True,
    )
    if fields["stem"] == "cifar":
        for place in SMALL_STRIDES:
            network.patch_embed.proj[place][0].stride = (1, 1)
        network.patch_embed.patch_size = 4
    network.normalizations = NORMALIZATIONS
    return network


def names(state: State) -> list[str]:
    return [f"debenedetti/xcit-{size}12" for size in SIZES] if "blocks.0.attn.temperature" in state else []
