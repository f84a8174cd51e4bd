"""Families of networks, each recognised by the names and shapes of its tensors.

A new family is one function `(state, metadata) -> Inferred | None` (see `base.Family`) and one line here.
"""

from __future__ import annotations

from rbtools.models.families.base import Ambiguous, Family, Inferred
from rbtools.registry import Registry

__all__ = ["FAMILIES", "Ambiguous", "Family", "Inferred"]

FAMILIES = Registry(
    "family of checkpoints",
    {
        "NAS-Bench-201 (stem, cells, lastact, classifier)": "rbtools.models.families.nb201_family:infer",
        "ResNet (conv1, bn1, layer1 to layer4, linear or fc)": "rbtools.models.families.small:resnet",
        "PreActResNet (conv1, layer1 to layer4, linear)": "rbtools.models.families.small:preactresnet",
        "Wide ResNet (conv1, block1 to block3, bn1, fc)": "rbtools.models.families.small:wideresnet",
        "VGG with one linear layer (features, classifier)": "rbtools.models.families.small:vgg",
        "the four-layer network for MNIST (conv1, conv2, fc1, fc2)": (
            "rbtools.models.families.small:simplecnn"
        ),
        "vision transformers in torchvision's or timm's naming": "rbtools.models.families.vit_family:infer",
    },
    group="checkpoint-families",
    closed=True,
)
