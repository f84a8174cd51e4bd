"""Vision transformers of the zoo, in torchvision's naming or timm's (DeiT's)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rbtools.models.families.base import Inferred, State, numbered, weight
from rbtools.spaces.zoo import FORMS, ViT

# The names that identify it: patches, positions, head, first linear layer of a block; a pattern of the
# blocks.
TORCHVISION = (
    "conv_proj.weight",
    "encoder.pos_embedding",
    "heads.head.weight",
    "encoder.layers.encoder_layer_0.mlp.0.weight",
    r"encoder\.layers\.encoder_layer_(\d+)()\.ln_1\.weight",
)
TIMM = (
    "patch_embed.proj.weight",
    "pos_embed",
    "head.weight",
    "blocks.0.mlp.fc1.weight",
    r"blocks\.(\d+)()\.norm1\.weight",
)
PER_BLOCK, OUTSIDE = 12, 8  # tensors


def infer(state: State, metadata: Mapping[str, Any]) -> Inferred | None:
    """A transformer of the zoo's widths and depths; `patch` and `side` where they are not 16 and 224.

    The number of heads leaves no trace: 64 channels each, as in all published ones of these widths.
    """
    for patches, positions, head, first, block in (TORCHVISION, TIMM):
        conv, places = weight(state, patches, 4), weight(state, positions, 3)
        last, inner = weight(state, head, 2), weight(state, first, 2)
        if conv is None or places is None or last is None or inner is None:
            continue
        width, in_channels, patch = conv.shape[:3]
        depth = len(numbered(state, block))
        name = next((n for n, form in FORMS.items() if form == ViT(width, depth)), None)
        grid = math.isqrt(places.shape[1] - 1)
        whole = grid * grid + 1 == places.shape[1] and len(inner) == 4 * width
        if name is None or not whole or len(state) != PER_BLOCK * depth + OUTSIDE:
            return None
        arch: dict[str, Any] = {"space": "zoo", "name": name}
        if (patch, grid * patch) != (16, 224):
            arch |= {"patch": patch, "side": grid * patch}
        return Inferred(arch, len(last), in_channels)
    return None
