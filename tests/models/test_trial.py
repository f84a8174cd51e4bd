"""What names, shapes and files do not say, told by accuracies on images: normalisations, variants, cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rbtools.errors import RbError
from rbtools.models import checkpoint, trial
from rbtools.models.checkpoint import NormalizationHints
from rbtools.models.families import Ambiguous
from rbtools.models.normalize import kinds
from tests.calibrated import COUNT, KNOWN, SIDE, hints, images, made, waves

SKIP = "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+|skip_connect~0|nor_conv_1x1~1|nor_conv_3x3~2|"
POOL = SKIP.replace("skip_connect", "avg_pool_3x3")


def load(seen: NormalizationHints, arch: dict[str, Any] | None = None) -> tuple[Any, Any, Any]:
    return checkpoint.load("m.pt", arch, shape=(3, SIDE, SIDE), hints=seen)


def test_of_near_normalisations_the_likeliest_is_tried_alone() -> None:
    """That of the data set, else that of a data set with as many classes, else the one published most."""
    network, labels = made("wrn-10-1", KNOWN["cifar10"], 100)
    torch.save(network.state_dict(), "m.pt")
    others = {name: pair for name, pair in KNOWN.items() if name not in ("kuangliu", "svhn")}
    for known, taken in ((others, "cifar100"), ({**others, "dataset": KNOWN["cinic10"]}, "cinic10")):
        _, arch, facts = load(hints(labels, known))
        assert arch["normalize"] == [list(part) for part in KNOWN[taken]]
        assert set(facts["tried"]["acc"]) >= {f"--normalize {taken}", "--normalize none", "--normalize half"}
    assert kinds({name: KNOWN[name] for name in ("cifar10", "rice", "cifar100", "kuangliu")}) == [
        "cifar10",
        "kuangliu",
    ]


def test_a_network_that_refuses_values_of_a_trial_is_wrong_on_those_images() -> None:
    class Positive(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.min() < 0:
                raise ValueError("pixels below 0")
            return x.mean((2, 3))

    labels = images().mean((2, 3)).argmax(1)
    models = {"none": Positive(), "half": nn.Sequential(nn.BatchNorm2d(3).eval(), Positive())}
    models["half"][0].running_mean.fill_(0.5)
    best, facts = trial.decided(Path("m.pt"), models, lambda: [(images(), labels)])
    assert (best, facts["acc"]) == ("none", {"none": 1.0, "half": 0.0})


@pytest.mark.slow
@pytest.mark.parametrize("cell", [SKIP, POOL])
def test_a_cell_and_the_normalisation_are_told_together(cell: str) -> None:
    network, labels = made(cell, KNOWN["half"])
    torch.save({"state_dict": network.state_dict()}, "m.pt")
    model, arch, facts = load(hints(labels))
    assert (arch["str"], arch["normalize"]) == (cell, [[0.5], [0.5]])
    assert facts["arch_from"] == "weights" and len(facts["tried"]["acc"]) == 3 * 5
    assert f"--arch {arch['name']} --normalize half" in facts["tried"]["acc"]
    assert model(images()).argmax(1).eq(labels).all()
    with pytest.raises(Ambiguous, match="3 architectures fit"):  # without images
        checkpoint.load("m.pt")
    with pytest.raises(
        RbError, match=r"15 networks or normalisations.*--arch nb201-\d+ --normalize .*more\."
    ):
        load(hints(torch.zeros(COUNT, dtype=torch.long) - 1))


PAIRS = {
    "preactresnet18-kuangliu:shortcut=input": "preactresnet18-kuangliu",
    "resnet18:stem=cifar-maxpool": "resnet18:stem=cifar",
    "torchvision:shufflenet_v2_x0_5:stem=cifar": "torchvision:shufflenet_v2_x0_5",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_a_variant_is_told_from_its_sibling(name: str) -> None:
    network, labels = made(name)
    torch.save(network.state_dict(), "m.pt")
    seen = hints(labels, {"none": None})
    model, arch, facts = load(seen)
    assert set(facts["tried"]["acc"]) == {f"--arch {name}", f"--arch {PAIRS[name]}"}
    assert facts["tried"]["acc"][f"--arch {name}"] == 1.0
    torch.testing.assert_close(model(waves(SIDE)), network(waves(SIDE)))
    with pytest.raises(RbError, match="do not tell which it is"):
        load(hints(torch.zeros(COUNT, dtype=torch.long) - 1, {"none": None}))
    _, arch, facts = checkpoint.load("m.pt", hints=NormalizationHints({"none": None}))
    assert facts["unchecked"] == [field for field in ("stem", "shortcut", "activation") if field in arch]
