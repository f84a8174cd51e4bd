"""Swin transformers (Liu et al., ICCV 2021) with Microsoft's tensor names, built by timm.

In `microsoft/swin-b` and similar networks, patches are merged at the end of a stage, but in timm at the
beginning of the next stage. `xu/swin-b` and `xu/swin-l` are the networks of MIMIR (Xu et al. 2024). Their
LayerNorm has a different epsilon, and pixels are not normalised. `xu/swin-l` has windows of 14.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn

from rbtools.models import Shape
from rbtools.models.families import State
from rbtools.zoo.libraries import import_timm
from rbtools.zoo.published_normalizations import IMAGENET

NAMES = r"(?P<owner>microsoft|xu)/swin-(?P<size>[tsbl])(?P<window>-window14)?"
EXAMPLES = ("microsoft/swin-b",)
# Width, heads and blocks of the stages.
SIZES: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = {
    "t": (96, (3, 6, 12, 24), (2, 2, 6, 2)),
    "s": (96, (3, 6, 12, 24), (2, 2, 18, 2)),
    "b": (128, (4, 8, 16, 32), (2, 2, 18, 2)),
    "l": (192, (6, 12, 24, 48), (2, 2, 18, 2)),
}


# There are no variants: the epsilon of LayerNorm changes only the sixth digit of the logits.
def build(match: re.Match[str], fields: Mapping[str, Any], classes: int, shape: Shape) -> nn.Module:
    width, heads, blocks = SIZES[match["size"]]
    epsilon = 1e-6 if match["owner"] == "xu" else 1e-5
    network: Any = import_timm().models.swin_transformer.SwinTransformer(
        in_chans=shape[0],
        num_classes=classes,
        embed_dim=width,
        depths=blocks,
        num_heads=heads,
        window_size=14 if match["window"] else 7,
        norm_layer=partial(nn.LayerNorm, eps=epsilon),
    )
    pairs: list[Any] = [IMAGENET, None] if match["owner"] == "microsoft" else [None, IMAGENET]
    network.normalizations, network.other_normalizations = {1000: pairs[0]}, {1000: pairs[1:]}
    return network


def names(state: State) -> list[str]:
    biased = "layers.0.blocks.0.attn.relative_position_bias_table" in state
    sizes = [f"{size}{window}" for size in SIZES for window in ("", "-window14")]
    return [f"microsoft/swin-{size}" for size in sizes] if biased else []
