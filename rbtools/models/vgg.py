"""VGG with BatchNorm (Simonyan and Zisserman, ICLR 2015) for small images, as in kuangliu/pytorch-cifar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from rbtools.spaces import zoo


class VGG(nn.Module):
    """Images (N, in_channels, H, W) -> logits (N, classes).

    `convs` 3x3 convolutions with bias, BatchNorm and ReLU in each of five stages of these `widths`, each
    followed by max-pooling; then global average pooling and one linear layer. Odd sides are pooled up
    (28 pixels become 14, 7, 4, 2, 1), so that small images do not vanish.
    """

    def __init__(
        self, convs: Sequence[int], widths: Sequence[int], *, classes: int, in_channels: int = 3
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = in_channels
        for count, width in zip(convs, widths, strict=True):
            for _ in range(count):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2, 2, ceil_mode=True))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images).mean((2, 3)))
        return logits


def from_form(
    form: zoo.VGGForm, fields: Mapping[str, Any], *, classes: int, shape: tuple[int, int, int]
) -> VGG:
    """The zoo's VGG of that form: VGG-19 has 20,040,522 parameters for 10 classes."""
    return VGG(form.convs, form.widths, classes=classes, in_channels=shape[0])
