"""The normalisations that networks without BatchNorm are published with.

Nothing in the tensors of such a network shows its normalisation. It is guessed only where all that publish
these tensors agree; where they differ, the user is asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from rbtools.errors import RbError
from rbtools.models import statistics
from rbtools.models.statistics import Known
from rbtools.zoo.libraries import import_timm

OF_LARGE = "imagenet"  # the known normalisation of torchvision's weights
LARGE = 1000  # classes of ImageNet
VIT_OF_TORCHVISION = "conv_proj.weight"
# The configurations of timm's weights for vision transformers (DeiT's; Google's ViT).
VIT_OF_TIMM = (OF_LARGE, "half")

TIMM_OPTIONS = {"model", "mean", "std", "interpolation", "crop_pct"}  # of timm's training script


def of_network(network: nn.Module, classes: int) -> list[Known]:
    """The normalisations that the network's authors publish for that many classes, the usual one first."""
    own = getattr(network, "normalizations", None)
    if isinstance(own, Mapping):
        others = getattr(network, "other_normalizations", {})
        return [own[classes], *others.get(classes, ())] if classes in own else []
    cfg = getattr(network, "pretrained_cfg", None)
    return list(_pairs([cfg] if isinstance(cfg, Mapping) else [], None))


def in_use(
    arch: Mapping[str, Any],
    network: nn.Module,
    classes: int,
    names: Collection[str],
    known: Mapping[str, Known],
    named: bool,
    metadata: Mapping[str, Any],
) -> list[Known]:
    """The published normalisations of networks with these tensors, one of each kind.

    `arch` is recognised from the tensors with these `names`, or `named` by the user. That name, or the one in
    `metadata` (the options of a training script), decides between configurations with equal tensors.
    `known` are normalisations by name.
    """
    if own := _of_timm_training(metadata):
        return own
    space, large = arch.get("space"), classes == LARGE
    usual: tuple[str, ...] = ()
    if large and (space == "torchvision" or any(name.endswith(VIT_OF_TORCHVISION) for name in names)):
        usual = (OF_LARGE,)
    elif large and space == "zoo" and str(arch.get("name")).startswith(("vit-", "deit-")):
        usual = VIT_OF_TIMM
    pairs = [known[name] for name in usual if name in known]
    if space == "timm" and not named:
        configurations = import_timm().models.get_arch_pretrained_cfgs(str(arch["name"])).values()
        pairs = list(_pairs([cfg.to_dict() for cfg in configurations if cfg.has_weights], classes))
    elif space in ("timm", "repo"):
        pairs = of_network(network, classes)[: 1 if named else None]
    numbered = {str(number): pair for number, pair in enumerate(pairs)}
    return [numbered[number] for number in statistics.kinds(numbered)]


def _of_timm_training(metadata: Mapping[str, Any]) -> list[Known]:
    """The normalisation in the saved options of timm's training script, by default that of the configuration
    of `model`; empty for other files.
    """
    options = metadata.get("args")
    if not isinstance(options, Mapping) or not options.keys() >= TIMM_OPTIONS:
        return []
    try:
        timm, name = import_timm(), str(options["model"])
    except RbError:
        return []
    cfg = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    return [] if cfg is None else list(_pairs([cfg.to_dict()], None))


def _pairs(configurations: Sequence[Mapping[str, Any]], classes: int | None) -> Iterable[Known]:
    """The normalisation of each configuration for that many classes; None: for any number."""
    for cfg in configurations:
        mean, std = cfg.get("mean"), cfg.get("std")
        if mean and std and classes in (None, cfg.get("num_classes")):
            yield None if not any(mean) and set(std) == {1} else (tuple(mean), tuple(std))
