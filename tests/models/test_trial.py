"""What names, shapes and files do not say: accuracies tell it, and variants compute what is published."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rbtools.datasets.normalization import CLASSES, NORMALIZATIONS
from rbtools.errors import RbError
from rbtools.inputs.named_networks import named_arch
from rbtools.models import build, checkpoint, weights_file
from rbtools.models.checkpoint import NormalizationHints
from rbtools.models.families import Ambiguous
from rbtools.models.normalising import Choices, choices
from rbtools.models.normalize import PER_IMAGE, PerImageStandardization, kinds
from rbtools.models.read_checkpoint import Checkpoint
from rbtools.spaces import describe
from rbtools.spaces.identity import identity
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
    different = kinds({name: KNOWN[name] for name in ("cifar10", "rice", "cifar100", "kuangliu")})
    assert different == ["cifar10", "kuangliu"]


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
    with pytest.raises(RbError, match=r"15 networks or normalisations.*--arch nb201-\d+ --normalize"):
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
    with pytest.raises(RbError, match="are too similar to choose one"):
        load(hints(torch.zeros(COUNT, dtype=torch.long) - 1, {"none": None}))
    _, arch, facts = checkpoint.load("m.pt", hints=NormalizationHints({"none": None}))
    assert facts["unchecked"] == [field for field in ("stem", "shortcut", "activation") if field in arch]


# The first four logits of the first image and the first two of the second, with weights by formula, as the
# published code of each network gives them.
GOLDEN = {
    # locuslab/fast_adversarial
    "preactresnet18:shortcut=input": (-812.929, -535.954, -223.461, 103.822, -919.119, -606.183),
    # RobustBench: Wong2020Fast, Andriushchenko2020Understanding
    "preactresnet18-kuangliu:shortcut=input": (-13.0822, -13.7458, -13.4346, -12.1502, -12.7443, -13.4432),
    # huyvnphan/PyTorch_CIFAR10
    "resnet18:stem=cifar-maxpool": (345.107, 400.923, 430.035, 430.508, 335.181, 393.643),
    # huyvnphan and chenyaofo/pytorch-cifar-models
    "torchvision:mobilenet_v2:stem=cifar": (-4.29845, 1.16022, 1.93787, -4.87823, -4.29845, 1.16022),
    # chenyaofo/pytorch-cifar-models
    "torchvision:shufflenet_v2_x0_5:stem=cifar": (
        -2.28405,
        -1.36592,
        -0.0547963,
        1.28472,
        -2.28405,
        -1.36592,
    ),
    # RobustBench: Ding2020MMA, each image standardised by itself
    "wrn-28-4": (-543185.0, 477396.0, -403648.0, 323169.0, -50114.1, 43866.4),
}


def filled(network: nn.Module) -> nn.Module:
    tensors = [(key, value) for key, value in network.state_dict().items() if value.is_floating_point()]
    for number, (key, value) in enumerate(tensors):
        wave = torch.sin(torch.arange(value.numel(), dtype=torch.float64) * 0.7 + number).float()
        if value.ndim > 1:
            value.copy_(wave.view(value.shape) * math.sqrt(3 / value[0].numel()))
        else:
            base = 3.0 if key.endswith("running_var") else 1.0 if key.endswith("weight") else 0.0
            value.copy_(wave.view(value.shape) * 0.2 + base)
    return network.eval()


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDEN)
@torch.no_grad()
def test_a_variant_computes_what_its_published_code_computes(name: str) -> None:
    network = filled(build(named_arch(name), classes=10, shape=(3, 32, 32)))
    logits = (PerImageStandardization(network) if name == "wrn-28-4" else network)(waves())
    found, largest = torch.cat([logits[0, :4], logits[1, :2]]), float(logits.abs().max())
    torch.testing.assert_close(found, torch.tensor(GOLDEN[name]), rtol=5e-4, atol=5e-4 * largest)


def test_a_flat_image_is_divided_by_the_least_deviation_of_per_image_standardization() -> None:
    image = torch.full((1, 3, 4, 4), 0.5)
    image[0, 0, 0, 0] += 0.01
    wanted = (image - image.mean()) * 48**0.5  # TensorFlow's rule: at least 1 / sqrt(number of values)
    torch.testing.assert_close(PerImageStandardization(nn.Identity())(image), wanted)


@pytest.mark.slow
def test_a_network_written_behind_its_images_own_normalisation_is_read_so() -> None:
    model = PerImageStandardization(made("wrn-10-1", PER_IMAGE)[0])
    Path("own.safetensors").write_bytes(weights_file.to_bytes(model, {"arch": named_arch("wrn-10-1")}))
    ours, _, facts = checkpoint.load("own.safetensors")
    assert (facts["normalize_from"], facts["normalize"]) == ("checkpoint", PER_IMAGE)
    assert torch.equal(ours(waves(SIDE)), model.eval()(waves(SIDE)))


@pytest.mark.slow
def test_the_fields_of_variants_are_counted_and_checked() -> None:
    small = describe(named_arch("resnet18:stem=cifar-maxpool"), 10, (3, 32, 32))
    usual = describe(named_arch("resnet18:stem=cifar"), 10, (3, 32, 32))
    assert small["params"] == usual["params"] and small["macs"] < usual["macs"] / 3
    assert "macs" not in describe(named_arch("torchvision:mobilenet_v2:stem=cifar"), 10, (3, 32, 32))
    assert identity(named_arch("resnet18:eps=1e-3")) != identity(named_arch("resnet18"))
    vit = {"space": "timm", "name": "vit_base_patch16_224"}
    assert named_arch(f"timm:{vit['name']}:side=32:patch=4") == {**vit, "side": 32, "patch": 4}
    assert named_arch("deit-ti:patch=8") == {"space": "zoo", "name": "deit-ti", "patch": 8}
    for text, words in {
        "wrn-28-10:activation=tanh": "not support the activation 'tanh'. Choose from: relu, silu, gelu",
        "torchvision:resnet18:stem=cifar": "torchvision's resnet18 does not support the stem 'cifar'",
        "resnet18:side=32": "resnet18 has no option side=",
        "nb201-126:channels=4": "not an option of architectures. Expected one of stem, pool",
        f"timm:{vit['name']}:patch=0": "is '0'. Expected a number of pixels",
    }.items():
        with pytest.raises(RbError, match=re.escape(words)):
            named_arch(text)


PUBLISHED: dict[str, Any] = {
    "dataset": NORMALIZATIONS["imagenet"],
    "none": None,
    **{name: pair for name, pair in NORMALIZATIONS.items() if name != "mnist"},
}
HALF = ((0.5,) * 3, (0.5,) * 3)


class Published(nn.Linear):
    """A network for 10 classes whose authors, and others, publish normalisations."""

    normalizations: Mapping[int, Any] = {10: HALF}
    other_normalizations: Mapping[int, Any] = {10: [NORMALIZATIONS["kuangliu"]]}


def choices_of(arch: Mapping[str, Any], network: nn.Linear, named: bool = False) -> Choices:
    file, known = Checkpoint(Path("m.pt"), {}, {}, saved={}), NormalizationHints(PUBLISHED, CLASSES)
    return choices(file, arch, network, network.out_features, 3, known, named)


def test_one_of_each_kind_is_tried_and_none_preferred_that_several_publish() -> None:
    """DeiT's and Google's vision transformers have equal names and shapes, and other normalisations."""
    found = choices_of({"space": "zoo", "name": "vit-b"}, nn.Linear(3, 1000))
    assert list(found.fields) == ["imagenet", "none", "half"]
    assert (found.source, found.preferred) == ("accuracy", ())
    arch = {"space": "repo", "name": "somebody/network"}
    assert choices_of(arch, Published(3, 10)).preferred == ()
    assert choices_of(arch, Published(3, 10), named=True).preferred == ("half",)
    assert choices_of(arch, Published(3, 7), named=True).preferred == ()
    arch = {"space": "torchvision", "name": "vgg11"}
    assert choices_of(arch, nn.Linear(3, 1000)).preferred == ("imagenet",)
    assert choices_of(arch, nn.Linear(3, 10)).preferred == ()  # trained by somebody else
