"""Networks with equal tensor names and shapes: their functions and their records."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from rbtools.errors import RbError
from rbtools.inputs.checkpoints import named_arch
from rbtools.models import build, checkpoint
from rbtools.models.normalize import PER_IMAGE, PerImageStandardization
from rbtools.spaces import describe
from rbtools.spaces.identity import identity
from tests.calibrated import SIDE, made, waves

pytestmark = pytest.mark.slow

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


@pytest.mark.parametrize("name", GOLDEN)
@torch.no_grad()
def test_a_variant_computes_what_its_published_code_computes(name: str) -> None:
    network = filled(build(named_arch(name), classes=10, shape=(3, 32, 32)))
    logits = (PerImageStandardization(network) if name == "wrn-28-4" else network)(waves())
    found, largest = torch.cat([logits[0, :4], logits[1, :2]]), float(logits.abs().max())
    torch.testing.assert_close(found, torch.tensor(GOLDEN[name]), rtol=5e-4, atol=5e-4 * largest)


def test_a_flat_image_is_not_divided_by_nothing() -> None:
    images = torch.stack([torch.full((3, 4, 4), 0.5), torch.linspace(0, 1, 48).view(3, 4, 4)])
    found = PerImageStandardization(nn.Identity())(images)
    assert found[0].abs().max() == 0
    assert found[1].mean().abs() < 1e-6 and found[1].std() == pytest.approx(1)


def test_a_network_written_behind_its_images_own_normalisation_is_read_so() -> None:
    model = PerImageStandardization(made("wrn-10-1", PER_IMAGE)[0])
    Path("own.safetensors").write_bytes(checkpoint.to_bytes(model, {"arch": named_arch("wrn-10-1")}))
    ours, _, facts = checkpoint.load("own.safetensors")
    assert (facts["normalize_from"], facts["normalize"]) == ("checkpoint", PER_IMAGE)
    assert torch.equal(ours(waves(SIDE)), model.eval()(waves(SIDE)))


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
        "wrn-28-10:activation=tanh": "no activation 'tanh'. Choose from: relu, silu, gelu",
        "resnet18:stem=big": "has no stem 'big'. Choose from: cifar, imagenet, cifar-maxpool",
        "preactresnet18:shortcut=bn": "no shortcut 'bn'. Choose from: activation, input",
        "torchvision:resnet18:stem=cifar": "torchvision's resnet18 has no stem 'cifar' here",
        "resnet18:side=32": "resnet18 takes no side=",
        "nb201-13714:patch=2": "takes no patch=",
        "nb201-126:channels=4": "not an option of architectures. Expected one of stem, pool",
        f"timm:{vit['name']}:side=x": "is 'x'. Expected pixels, as in side=32",
        f"timm:{vit['name']}:patch=0": "is '0'. Expected pixels",
    }.items():
        with pytest.raises(RbError, match=re.escape(words)):
            named_arch(text)
