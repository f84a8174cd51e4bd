"""Networks of public repositories with their original tensor names, called `repo:OWNER/NAME`.

To add a family, add one file to this folder and one line to `REPOSITORIES`. Its module has

    NAMES               a regular expression for all names of its networks
    EXAMPLES            some of these names
    names(state)        candidate names for a bare state dict; these networks are built and compared
    build(match, fields, classes, shape)    the network with the matched name and the record's fields
    variants(name)      fields that tensor names and shapes do not determine, the usual ones first; optional

A network may have two further attributes. `normalizations`, {number of classes: (mean, std)}, contains the
normalisations that the network's authors use. `other_normalizations`, {number of classes: [...]}, contains
the normalisations that other publishers of the same tensors use.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from torch import nn

from rbtools.errors import RbError, near
from rbtools.models import Shape
from rbtools.models.families import Inferred, State, classes_of, fits, in_channels_of

REPOSITORIES = (
    "deepmind",  # google-deepmind and DM-Improves-AT (init_conv, layer, batchnorm, logits)
    "huang",  # Huang et al.'s Wide ResNets (stem_conv, blocks, fc)
    "augmix",  # AugMix's ResNeXt (conv_1_3x3, stage_1 to stage_3, classifier)
    "card_deck",  # CARD's ResNets (Diffenderfer et al.)
    "xcit",  # XCiT (patch_embed, blocks with attn.temperature), built by timm
    "convstem",  # ConvNeXt and ViT behind convolutional stems (Singh et al.), built by timm
    "swin",  # Swin transformers (patch_embed, layers with relative_position_bias_table), built by timm
)


def families() -> Iterator[ModuleType]:
    """Yields the module of each family."""
    return (importlib.import_module(f"{__name__}.{name}") for name in REPOSITORIES)


def infer(state: State, metadata: Mapping[str, Any]) -> Inferred | None:
    """Returns the usual variant of a repository's network with these tensors."""
    classes, channels = classes_of(state), in_channels_of(state)
    if classes is None or channels is None:
        return None
    for name in (name for family in families() for name in family.names(state)):
        arch = {"space": "repo", "name": name, **next(iter(variants_of({"name": name})), {})}
        if fits(state, arch, classes, (channels, 224, 224)):
            return Inferred(arch, classes, channels)
    return None


def from_arch(arch: Mapping[str, Any], *, classes: int, shape: Shape) -> nn.Module:
    """Build the network called `arch["name"]`. Raises RbError for an unknown name or variant."""
    name = str(arch.get("name"))
    match, family = _family(name)
    variants = variants_of(arch)
    for field in {field for one in variants for field in one}:
        known = [one[field] for one in variants]
        if arch.get(field, known[0]) not in known:
            raise RbError(f"repo:{name} has no {field} {arch[field]!r}. Choose from: {', '.join(known)}.")
    usual = variants[0] if variants else {}
    return family.build(match, {**usual, **arch}, classes, shape)


def variants_of(arch: Mapping[str, Any]) -> list[dict[str, str]]:
    """Returns the fields of each variant of a network, beginning with the usual variant."""
    name = str(arch.get("name"))
    _, family = _family(name)
    return list(family.variants(name)) if hasattr(family, "variants") else []


def _family(name: str) -> tuple[re.Match[str], ModuleType]:
    for family in families():
        match = re.fullmatch(family.NAMES, name)
        if match:
            return match, family
    known = [example for family in families() for example in family.EXAMPLES]
    raise RbError(
        f"There is no network repo:{name[:80]}.{near(name, known)} Known networks (other sizes are"
        f" possible): {', '.join(known)}."
    )
