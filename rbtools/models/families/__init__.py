"""Families of networks, each recognised by the names and shapes of its tensors.

A new family is one function `(state, metadata) -> Inferred | None` (see `base.Family`) and one line here.
"""

from __future__ import annotations

from rbtools.models import repositories
from rbtools.models.families import nb201_family, small, timm_family, torchvision, vit_family
from rbtools.models.families.base import Ambiguous, Family, Inferred

__all__ = ["FAMILIES", "Ambiguous", "Family", "Inferred"]

FAMILIES: dict[str, Family] = {
    "NAS-Bench-201 (stem, cells, lastact, classifier)": nb201_family.infer,
    "ResNet (conv1, bn1, layer1 to layer4, linear or fc)": small.resnet,
    "PreActResNet (conv1, layer1 to layer4, linear)": small.preactresnet,
    "Wide ResNet (conv1, block1 to block3, bn1, fc)": small.wideresnet,
    "VGG with one linear layer (features, classifier)": small.vgg,
    "the four-layer network for MNIST (conv1, conv2, fc1, fc2)": small.simplecnn,
    "vision transformers in torchvision's or timm's naming": vit_family.infer,
    "every classification network of torchvision": torchvision.infer,
    "networks of public repositories (repo:OWNER/NAME)": repositories.infer,
    "networks of timm (pip install 'rbtools[timm]')": timm_family.infer,
}
