"""The zoo's networks: listed counts, the functions of those who published them, and what builds them."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from rbtools import models
from rbtools.errors import RbError
from rbtools.inputs.named_networks import named_arch
from rbtools.models import checkpoint, families
from rbtools.models.normalize import Normalized
from rbtools.models.resnet import ResNet
from rbtools.models.tensor_names import translation
from rbtools.models.torchvision_import import torchvision


def filled(network):
    """With numbers that leave nothing alone: statistics of BatchNorm too."""
    for name, value in network.state_dict().items():
        if value.is_floating_point():
            value.normal_(0, 0.1)
            if name.endswith("running_var"):
                value.abs_().add_(0.5)
    return network.eval()


def load(network, theirs):
    new = translation(theirs, network.state_dict())
    network.load_state_dict({new[key]: value for key, value in theirs.items() if key in new})
    return network.eval()


def zoo_network(name, classes=5, shape=(3, 32, 32), **fields):
    return models.build({"space": "zoo", "name": name, **fields}, classes=classes, shape=shape).eval()


def test_vgg_computes_torchvisions_features():
    vgg = torchvision.models.vgg
    theirs = filled(vgg.make_layers(vgg.cfgs["A"], batch_norm=True))
    ours = zoo_network("vgg11")
    ours.features.load_state_dict(theirs.state_dict())
    assert ours.features(torch.rand(2, 3, 28, 28)).shape[2:] == (1, 1)  # pooled up: 14, 7, 4, 2, 1
    for side in (32, 64):
        images = torch.rand(2, 3, side, side)
        torch.testing.assert_close(ours(images), ours.classifier(theirs(images).mean((2, 3))))


@pytest.mark.parametrize(
    ("name", "stem"), [("resnet18", "imagenet"), ("resnet50", "imagenet"), ("resnet34", "cifar")]
)
def test_resnets_are_torchvisions(name, stem):
    theirs = torchvision.models.get_model(name, num_classes=5)
    if stem == "cifar":
        theirs.conv1, theirs.maxpool = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False), torch.nn.Identity()
    filled(theirs)
    ours = load(zoo_network(name, stem=stem), theirs.state_dict())
    images = torch.rand(1, 3, 72, 64)
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-4, atol=1e-4)


def preactivation_block(state, x, stride, shortcut):
    """locuslab/robust_overfitting and TRADES, line by line; `shortcut` is its tensor's name."""

    def norm(x, name):
        keys = ("running_mean", "running_var", "weight", "bias")
        return F.batch_norm(x, *(state[f"{name}.{key}"] for key in keys))

    out = F.relu(norm(x, "bn1"))
    beside = F.conv2d(out, state[shortcut], stride=stride) if shortcut in state else x
    out = F.conv2d(out, state["conv1.weight"], stride=stride, padding=1)
    return F.conv2d(F.relu(norm(out, "bn2")), state["conv2.weight"], padding=1) + beside


@pytest.mark.parametrize(
    ("name", "block", "stages", "shortcut", "pool", "final"),
    [
        ("preactresnet18", "layer{}.{}", 4, "shortcut.0", 4, "bn"),
        ("preactresnet18-kuangliu", "layer{}.{}", 4, "shortcut.0", 4, None),
        ("wrn-16-2", "block{}.layer.{}", 3, "convShortcut", 8, "bn1"),
    ],
)
def test_preactivation_networks_compute_the_published_function(name, block, stages, shortcut, pool, final):
    network = filled(zoo_network(name))
    state = network.state_dict()
    images = torch.rand(2, 3, 32, 32)
    x = F.conv2d(images, state["conv1.weight"], padding=1)
    for stage, number in itertools.product(range(1, stages + 1), range(2)):
        start = block.format(stage, number) + "."
        tensors = {key.removeprefix(start): value for key, value in state.items() if key.startswith(start)}
        x = preactivation_block(tensors, x, 2 if stage > 1 and not number else 1, f"{shortcut}.weight")
    if final:
        keys = ("running_mean", "running_var", "weight", "bias")
        x = F.relu(F.batch_norm(x, *(state[f"{final}.{key}"] for key in keys)))
    features = F.avg_pool2d(x, pool).flatten(1)
    head = "fc" if "fc.weight" in state else "linear"
    expected = F.linear(features, state[f"{head}.weight"], state[f"{head}.bias"])
    torch.testing.assert_close(network(images), expected)
    assert expected.std() > 1e-3


def test_simplecnn_is_pytorchs_mnist_example():
    network = filled(zoo_network("simplecnn", 10, (1, 28, 28)))
    state = network.state_dict()

    def weights(name):
        return state[f"{name}.weight"], state[f"{name}.bias"]

    images = torch.rand(3, 1, 28, 28)
    x = F.relu(F.conv2d(F.relu(F.conv2d(images, *weights("conv1"))), *weights("conv2")))
    x = F.relu(F.linear(F.max_pool2d(x, 2).flatten(1), *weights("fc1")))
    torch.testing.assert_close(network(images), F.linear(x, *weights("fc2")))


def test_a_transformer_is_torchvisions_behind_a_resize():
    layers = {"num_layers": 12, "num_heads": 3, "hidden_dim": 192, "mlp_dim": 768, "num_classes": 5}
    theirs = filled(torchvision.models.VisionTransformer(image_size=32, patch_size=8, **layers))
    ours = load(zoo_network("deit-ti", patch=8, side=32), theirs.state_dict())
    images = torch.rand(2, 3, 48, 40)
    resized = F.interpolate(images, (32, 32), mode="bilinear", align_corners=False)
    torch.testing.assert_close(ours(images), theirs(resized))
    torch.testing.assert_close(ours(resized), theirs(resized))


@pytest.mark.parametrize(
    ("name", "classes", "side", "expected"),
    [("resnet34", 200, 64, 21_686_792), ("resnet18", 50, 224, 12_423_282), ("resnet18", 10, 32, 11_173_962)],
)
def test_with_windows_of_4x4_parameters_are_those_of_prbenchs_code(name, classes, side, expected):
    arch = {"space": "zoo", "name": name, "stem": "cifar", "pool": "4x4"}
    with torch.device("meta"):
        network = models.build(arch, classes=classes, shape=(3, side, side))
    assert sum(p.numel() for p in network.parameters()) == expected
    network = ResNet((1, 1, 1, 1), classes=5, width=4, windows=4).eval()
    features = []
    network.layer4.register_forward_hook(lambda module, inputs, output: features.append(output))
    logits = network(torch.rand(2, 3, 64, 64))
    means = features[0].reshape(2, 32, 2, 4, 2, 4).mean((3, 5)).flatten(1)
    torch.testing.assert_close(logits, network.linear(means))


@pytest.mark.slow
def test_a_file_with_the_larger_linear_layer_is_recognised():
    arch = {"space": "zoo", "name": "resnet18", "stem": "cifar", "pool": "4x4"}
    network = models.build(arch, classes=3, shape=(3, 64, 64)).eval()
    torch.save(network.state_dict(), "m.pt")
    for named in (None, {"space": "zoo", "name": "resnet18"}):
        model, known, facts = checkpoint.load("m.pt", named)
        assert known == arch and facts["shape"] == [3, 64, 64]
        images = torch.rand(2, 3, 64, 64)
        torch.testing.assert_close(model(images), network(images))
    assert named_arch("resnet18:stem=cifar:pool=4x4") == arch
    assert families.label(arch) == "resnet18:stem=cifar:pool=4x4"


SMALL = (3, 16, 16)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: models.build({}, classes=10, shape=SMALL), "has no field 'space'"),
        (lambda: models.build({"space": "nasbench21"}, classes=10, shape=SMALL), "mean 'nasbench201'"),
        (lambda: zoo_network("resnet81"), "Did you mean 'resnet18'"),
        (lambda: zoo_network("resnet18", shape=SMALL, pool="4x4"), "16x16 pixels are too small for a ResNet"),
        (lambda: named_arch("resnet18:pool=2x2"), r"not support the pool '2x2'\. Choose from: global, 4x4\."),
        (lambda: Normalized(torch.nn.Identity(), [0.5] * 3, [0.2, 0.0, 0.2]), "mean"),
        (lambda: Normalized(torch.nn.Identity(), [float("nan")], [1.0]), "mean"),
        (lambda: Normalized(torch.nn.Identity(), [0.5] * 3, [1.0]), "mean"),
    ],
)
def test_what_no_network_can_be_built_from_is_refused(wrong, said):
    with pytest.raises(RbError, match=said):
        wrong()


def test_torchvision_is_there_after_the_hook() -> None:
    script = "import rbtools.torchvision_hook, torchvision; torchvision.models.resnet18()"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


@pytest.mark.slow
def test_own_code_may_import_torchvision(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import dataclasses, torchvision\n"
        "from rbtools.attacks.pgd import PGD\n"
        "@dataclasses.dataclass(frozen=True, kw_only=True)\n"
        "class Mine(PGD):\n    name = 'mine'\n"
    )
    (tmp_path / "nets.py").write_text("import torchvision\nnet = torchvision.models.squeezenet1_1\n")
    # As without the line of `make setup`, which has imported the hook when Python started.
    before = "import sys; sys.modules.pop('rbtools.torchvision_hook', None);"
    before += "sys.meta_path[:] = [one for one in sys.meta_path if 'hook' not in type(one).__module__];"
    for load in (
        "from rbtools.attacks import ATTACKS; ATTACKS.load('python:mine:Mine')",
        "from rbtools.models import own_network as own;"
        "own.from_python({'name': 'nets:net'}, classes=10, shape=(3, 64, 64))",
    ):
        subprocess.run([sys.executable, "-c", before + load], check=True, timeout=300, cwd=tmp_path)
