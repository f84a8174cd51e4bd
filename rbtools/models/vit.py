"""Vision transformers of torchvision for images of any size and any number of channels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from rbtools.models import Shape
from rbtools.models.torchvision_import import torchvision
from rbtools.spaces import zoo


class VisionTransformer(torchvision.models.VisionTransformer):
    """Maps images (N, in_channels, H, W) to logits (N, classes). The parameters have torchvision's names.

    Images of other sizes are resized to `side` x `side` pixels, without antialiasing, because the gradient
    must reach every pixel.
    """

    def __init__(
        self, form: zoo.ViT, *, classes: int, in_channels: int = 3, patch: int = 16, side: int = 224
    ) -> None:
        super().__init__(
            image_size=side,
            patch_size=patch,
            num_layers=form.depth,
            num_heads=form.heads,
            hidden_dim=form.width,
            mlp_dim=4 * form.width,
            num_classes=classes,
        )
        if in_channels != 3:
            self.conv_proj = nn.Conv2d(in_channels, form.width, patch, patch)

    def forward(self, images: Tensor) -> Tensor:
        side = self.image_size
        if tuple(images.shape[2:]) != (side, side):
            images = F.interpolate(images, (side, side), mode="bilinear", align_corners=False)
        return super().forward(images)


def vit(form: zoo.ViT, fields: Mapping[str, Any], *, classes: int, shape: Shape) -> VisionTransformer:
    """Build a vision transformer. ViT-B has 85,806,346 parameters for 10 classes."""
    sizes = {name: int(fields[name]) for name in ("patch", "side") if name in fields}
    return VisionTransformer(form, classes=classes, in_channels=shape[0], **sizes)
