"""The CIFAR ResNets: published parameter counts, the function of torchvision's blocks, names."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from rbtools.models import build
from rbtools.models.resnet import ResNet
from rbtools.models.tensor_names import translated
from rbtools.models.torchvision_import import torchvision


@pytest.mark.parametrize(
    ("name", "classes", "expected"),
    [
        ("resnet18", 10, 11_173_962),
        ("resnet18", 100, 11_220_132),
        ("resnet18", 200, 11_271_432),
        ("resnet34", 10, 21_282_122),
        ("resnet34", 100, 21_328_292),
    ],
)
def test_parameters_are_the_published_ones(name, classes, expected):
    with torch.device("meta"):
        network = build({"space": "zoo", "name": name}, classes=classes, shape=(3, 32, 32))
    assert sum(p.numel() for p in network.parameters()) == expected


def test_computes_what_torchvisions_blocks_compute():
    """torchvision's ResNet with the CIFAR stem in place of its own, and the weights translated."""
    ours = ResNet((2, 1, 3, 1), classes=7)
    theirs = torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [2, 1, 3, 1], num_classes=7)
    theirs.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
    theirs.maxpool = torch.nn.Identity()
    wanted = ours.state_dict()
    ours.load_state_dict({translated(key, wanted): value for key, value in theirs.state_dict().items()})
    images = torch.rand(2, 3, 16, 16)
    for mode in (False, True):
        torch.testing.assert_close(ours.train(mode)(images), theirs.train(mode)(images))


def test_names_are_kuanglius():
    names = ResNet((1, 1, 1, 1), classes=2, width=4).state_dict()
    assert {"layer1.0.conv1.weight", "layer2.0.shortcut.0.weight", "layer2.0.shortcut.1.bias"} <= names.keys()
    assert {"conv1.weight", "bn1.weight", "linear.bias"} <= names.keys()
    assert not any(name.startswith("layer1.0.shortcut") for name in names)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 28, 28), (3, 64, 48)])
def test_any_image_size_gives_logits(shape):
    network = ResNet((1, 1, 1, 1), classes=5, in_channels=shape[0], width=4).eval()
    assert network(torch.rand(2, *shape)).shape == (2, 5)


def test_pooling_is_the_fixed_4x4_one_at_32_pixels():
    network = ResNet((1, 1, 1, 1), classes=5, width=4).eval()
    features = []
    network.layer4.register_forward_hook(lambda module, inputs, output: features.append(output))
    logits = network(torch.rand(2, 3, 32, 32))
    torch.testing.assert_close(logits, network.linear(F.avg_pool2d(features[0], 4).flatten(1)))
