"""The normalisations that the publishers of networks use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from rbtools.datasets import NORMALIZATIONS
from rbtools.models.normalize import Known, kinds
from rbtools.zoo.libraries import import_timm

IMAGENET: Known = NORMALIZATIONS["imagenet"]  # used by torchvision's weights
LARGE = 1000  # classes of ImageNet


def of_network(arch: Mapping[str, Any], network: nn.Module, classes: int, named: bool) -> list[Known]:
    """Returns the normalisations that publishers of these tensors use for `classes` classes, one of each
    kind.

    If the user `named` the network, the name decides between configurations with equal tensors.
    """
    own = getattr(network, "normalizations", None)
    pairs: list[Known] = []
    if isinstance(own, Mapping):
        others = getattr(network, "other_normalizations", {})
        pairs = [own[classes], *others.get(classes, ())] if classes in own else []
    elif arch.get("space") == "timm":
        pairs = _of_timm(str(arch["name"]), network, classes, named)
    elif arch.get("space") == "torchvision" and classes == LARGE:
        pairs = [IMAGENET]
    numbered = {str(number): pair for number, pair in enumerate(pairs[: 1 if named else None])}
    return [numbered[number] for number in kinds(numbered)]


def _of_timm(name: str, network: nn.Module, classes: int, named: bool) -> list[Known]:
    """Returns the normalisations of the named network, or those of all weights for `classes` classes."""
    configurations = [getattr(network, "pretrained_cfg", None) or {}]
    if not named:
        listed = import_timm().models.get_arch_pretrained_cfgs(name).values()
        configurations = [cfg.to_dict() for cfg in listed if cfg.has_weights and cfg.num_classes == classes]
    pairs = [(cfg["mean"], cfg["std"]) for cfg in configurations if cfg.get("mean") and cfg.get("std")]
    return [None if not any(mean) and set(std) == {1} else (tuple(mean), tuple(std)) for mean, std in pairs]
