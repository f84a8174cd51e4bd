"""Networks without BatchNorm: their normalisation is guessed where all agree, else asked for."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rbtools.datasets.normalization import CLASSES, NORMALIZATIONS
from rbtools.errors import RbError
from rbtools.models.normalising import ChosenNormalization, NormalizationHints, choose_normalization
from rbtools.models.read_checkpoint import Checkpoint

KNOWN: dict[str, Any] = {
    "dataset": NORMALIZATIONS["imagenet"],
    "none": None,
    **{name: (pair.mean, pair.std) for name, pair in NORMALIZATIONS.items() if len(pair.mean) in (1, 3)},
}
HALF = ((0.5,) * 3, (0.5,) * 3)
VIT = {"space": "zoo", "name": "vit-b"}
PUBLISHED = "guess: the published configuration"


# timm is not imported here: it fails where torchvision's operators are missing, unless rbtools does.
with_timm = pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is not installed")


class Published(nn.Linear):
    """A network for 10 classes whose authors, and others, publish normalisations."""

    normalizations: Mapping[int, Any] = {10: HALF}
    other_normalizations: Mapping[int, Any] = {10: [NORMALIZATIONS["kuangliu"]]}


def normalised_as(
    arch: Mapping[str, Any],
    network: nn.Module | None = None,
    classes: int = 1000,
    key: str = "patch_embed.proj.weight",
    images: bool = True,
    **about: Any,
) -> ChosenNormalization:
    file = Checkpoint(Path("m.pt"), {}, about.get("metadata", {}), saved={key: torch.zeros(1)})
    hints = NormalizationHints((lambda: torch.rand(4, 3, 8, 8)) if images else None, KNOWN, CLASSES)
    network = nn.Linear(3, classes) if network is None else network
    return choose_normalization(file, arch, network, classes, (3, 8, 8), hints, about.get("named", False))


def test_a_vision_transformer_in_timms_names_is_asked_about() -> None:
    """DeiT's and Google's have the same names and shapes, and different normalisations."""
    with pytest.raises(RbError, match=r"m\.pt has no BatchNorm.*--normalize imagenet or --normalize half"):
        normalised_as(VIT)
    assert normalised_as(VIT, images=False).facts["normalize_from"] == "open"


def test_torchvisions_weights_have_one_normalisation() -> None:
    for arch, key in ((VIT, "module.conv_proj.weight"), ({"space": "torchvision", "name": "vgg11"}, "x")):
        chosen = normalised_as(arch, key=key)
        assert chosen.arch == {"normalize": [list(values) for values in KNOWN["imagenet"]]}
        assert chosen.facts["normalize_from"] == PUBLISHED
        with pytest.raises(RbError, match="--normalize imagenet or --normalize none"):
            normalised_as(arch, classes=10, key=key)  # trained by somebody else


def test_several_normalisations_of_a_repository_are_asked_about_unless_its_name_is_given() -> None:
    arch = {"space": "repo", "name": "somebody/network"}
    with pytest.raises(RbError, match="--normalize half or --normalize kuangliu"):
        normalised_as(arch, Published(3, 10), classes=10)
    named = normalised_as(arch, Published(3, 10), classes=10, named=True)
    assert named.arch == {"normalize": [[0.5] * 3, [0.5] * 3]}
    with pytest.raises(RbError, match="--normalize imagenet or --normalize none"):
        normalised_as(arch, Published(3, 7), classes=7)  # of which its authors publish nothing


def test_a_network_of_ones_own_code_takes_pixels_as_they_are() -> None:
    assert normalised_as({"space": "python", "name": "mine:make"}).arch == {"normalize": "none"}


@with_timm
def test_what_timm_publishes_for_all_weights_of_a_network_decides() -> None:
    agreed = normalised_as({"space": "timm", "name": "convnext_tiny"})
    assert agreed.arch == {"normalize": [list(values) for values in KNOWN["imagenet"]]}
    with pytest.raises(RbError, match="--normalize half or --normalize none"):
        normalised_as({"space": "timm", "name": "mixer_b16_224"})


@with_timm
@pytest.mark.parametrize(
    ("model", "expected"),
    [("vit_base_patch16_224.sam_in1k", HALF), ("deit_base_patch16_224", KNOWN["imagenet"])],
)
def test_the_options_of_timms_training_script_decide(model: str, expected: Any) -> None:
    options = {"model": model, "mean": None, "std": None, "interpolation": "", "crop_pct": None}
    chosen = normalised_as(VIT, metadata={"args": options})
    assert chosen.arch == {"normalize": [list(values) for values in expected]}
    with pytest.raises(RbError, match="Say which"):  # a script of somebody else
        normalised_as(VIT, metadata={"args": {"model": model}})
