"""The normalisations that other people's networks are published with, and those that are tried."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from rbtools.datasets.normalization import CLASSES, NORMALIZATIONS
from rbtools.models.normalising import Choices, NormalizationHints, choices
from rbtools.models.read_checkpoint import Checkpoint

KNOWN: dict[str, Any] = {
    "dataset": NORMALIZATIONS["imagenet"],
    "none": None,
    **{name: pair for name, pair in NORMALIZATIONS.items() if name != "mnist"},
}
HALF = ((0.5,) * 3, (0.5,) * 3)


class Published(nn.Linear):
    """A network for 10 classes whose authors, and others, publish normalisations."""

    normalizations: Mapping[int, Any] = {10: HALF}
    other_normalizations: Mapping[int, Any] = {10: [NORMALIZATIONS["kuangliu"]]}


def choices_of(
    arch: Mapping[str, Any], network: nn.Module | None = None, classes: int = 1000, named: bool = False
) -> Choices:
    file = Checkpoint(Path("m.pt"), {}, {}, saved={})
    network = nn.Linear(3, classes) if network is None else network
    return choices(file, arch, network, classes, 3, NormalizationHints(KNOWN, CLASSES), named)


def test_one_of_each_kind_is_tried_and_none_preferred_that_several_publish() -> None:
    """DeiT's and Google's vision transformers have equal names and shapes, and other normalisations."""
    found = choices_of({"space": "zoo", "name": "vit-b"})
    assert list(found.fields) == ["imagenet", "none", "half"]
    assert (found.source, found.preferred) == ("accuracy", ())
    arch = {"space": "repo", "name": "somebody/network"}
    assert choices_of(arch, Published(3, 10), 10).preferred == ()
    assert choices_of(arch, Published(3, 10), 10, named=True).preferred == ("half",)
    assert choices_of(arch, Published(3, 7), 7, named=True).preferred == ()


def test_torchvisions_weights_have_one_normalisation() -> None:
    arch = {"space": "torchvision", "name": "vgg11"}
    assert choices_of(arch).preferred == ("imagenet",)
    assert choices_of(arch, classes=10).preferred == ()  # trained by somebody else


def test_a_network_of_ones_own_code_takes_pixels_as_they_are() -> None:
    found = choices_of({"space": "python", "name": "mine:make"})
    assert found == Choices({"none": {"normalize": "none"}}, "guess: none for python:")
