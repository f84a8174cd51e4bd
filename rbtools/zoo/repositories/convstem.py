"""ConvNeXt and ViT with convolutional stems (Singh et al. 2023) for 224x224 images. timm builds the other
layers.

All networks except vit-s are applied to pixels without normalisation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rbtools.models import Shape
from rbtools.models.families import State
from rbtools.zoo.libraries import import_timm
from rbtools.zoo.published_normalizations import IMAGENET

NAMES = r"singh/(?P<body>convnext-[tsbl]|vit-[sb])"
EXAMPLES = ("singh/convnext-t", "singh/vit-s")
# timm's name, the channels of the stem's convolutions, and their strides.
BODIES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {
    "convnext-t": ("convnext_tiny", (48, 96), (2, 2)),
    "convnext-s": ("convnext_small", (48, 96), (2, 2)),
    "convnext-b": ("convnext_base", (64, 96, 128), (2, 2, 1)),
    "convnext-l": ("convnext_large", (96, 144, 192), (2, 2, 1)),
    "vit-s": ("deit_small_patch16_224", (48, 96, 192, 384), (2, 2, 2, 2)),
    "vit-b": ("vit_base_patch16_224", (48, 96, 192, 384), (2, 2, 2, 2)),
}


class ChannelNorm(nn.Module):
    """LayerNorm over the channels of (N, C, H, W)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(1, keepdim=True)
        scaled = centred / (centred.pow(2).mean(1, keepdim=True) + 1e-6).sqrt()
        return self.weight[:, None, None] * scaled + self.bias[:, None, None]


class ConvStem(nn.Module):
    """3x3 convolutions, each with ChannelNorm and GELU, and a 1x1 convolution if `width` is given."""

    def __init__(
        self, in_channels: int, channels: Sequence[int], strides: Sequence[int], width: int | None = None
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = in_channels
        for number, stride in zip(channels, strides, strict=True):
            layers += [nn.Conv2d(before, number, 3, stride, padding=1), ChannelNorm(number), nn.GELU()]
            before = number
        if width is not None:
            layers.append(nn.Conv2d(before, width, 1))
        self.stem = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        return self.stem(images)


def build(match: re.Match[str], fields: Mapping[str, Any], classes: int, shape: Shape) -> nn.Module:
    body, channels, strides = BODIES[match["body"]]
    network: Any = import_timm().create_model(body, num_classes=classes, in_chans=shape[0])
    if body.startswith("convnext"):
        network.stem = ConvStem(shape[0], channels, strides)
    else:
        network.patch_embed.proj = ConvStem(shape[0], channels, strides, network.embed_dim)
    network.normalizations = {1000: IMAGENET if match["body"] == "vit-s" else None}
    return network


def names(state: State) -> list[str]:
    stems = state.keys() & {"stem.stem.0.weight", "patch_embed.proj.stem.0.weight"}
    return [f"singh/{body}" for body in BODIES] if stems else []
