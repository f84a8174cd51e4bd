"""The CIFAR ResNets: published parameter counts, the function of torchvision's blocks, names."""

from __future__ import annotations

import pytest
import torch

from rbtools.errors import RbError
from rbtools.inputs.checkpoints import named_arch
from rbtools.models import build, checkpoint, disambiguate
from rbtools.models.resnet import ResNet
from rbtools.models.tensor_names import translated
from rbtools.models.torchvision_import import torchvision
from rbtools.spaces import zoo


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


@pytest.mark.parametrize(
    ("name", "classes", "side", "expected"),
    [
        ("resnet18", 200, 64, 11_578_632),
        ("resnet34", 200, 64, 21_686_792),
        ("resnet18", 50, 224, 12_423_282),
        ("resnet18", 10, 32, 11_173_962),
    ],
)
def test_with_windows_of_4x4_parameters_are_those_of_prbenchs_code(name, classes, side, expected):
    arch = {"space": "zoo", "name": name, "stem": "cifar", "pool": "4x4"}
    with torch.device("meta"):
        network = build(arch, classes=classes, shape=(3, side, side))
    assert sum(p.numel() for p in network.parameters()) == expected
    assert zoo.costs(arch, classes, (3, side, side))[0] == expected


def test_windows_of_4x4_are_inputs_of_their_own():
    network = ResNet((1, 1, 1, 1), classes=5, width=4, windows=4).eval()
    features = []
    network.layer4.register_forward_hook(lambda module, inputs, output: features.append(output))
    logits = network(torch.rand(2, 3, 64, 64))
    means = features[0].reshape(2, 32, 2, 4, 2, 4).mean((3, 5)).flatten(1)
    torch.testing.assert_close(logits, network.linear(means))


def test_a_file_with_the_larger_linear_layer_is_recognised(tmp_path):
    arch = {"space": "zoo", "name": "resnet18", "stem": "cifar", "pool": "4x4"}
    network = build(arch, classes=3, shape=(3, 64, 64)).eval()
    torch.save(network.state_dict(), tmp_path / "m.pt")
    for named in (None, {"space": "zoo", "name": "resnet18"}):
        model, known, facts = checkpoint.load(tmp_path / "m.pt", named)
        assert known == arch and facts["shape"] == [3, 64, 64]
        images = torch.rand(2, 3, 64, 64)
        torch.testing.assert_close(model(images), network(images))
    assert named_arch("resnet18:stem=cifar:pool=4x4") == arch
    assert disambiguate.label(arch) == "resnet18:stem=cifar:pool=4x4"


def test_images_without_a_window_of_4x4_and_other_pools_are_refused():
    with pytest.raises(RbError, match=r"no window of 4x4 left of images of 16x16 pixels\."):
        zoo.costs({"name": "resnet18", "pool": "4x4"}, 10, (3, 16, 16))
    with pytest.raises(RbError, match=r"no pool '2x2'\. Choose from: global, 4x4\."):
        named_arch("resnet18:pool=2x2")
