"""The zoo's networks: the counts that are listed, and the functions of those who published them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from rbtools import models
from rbtools.models.load_weights import meta_init
from rbtools.models.tensor_names import translation
from rbtools.models.torchvision_import import torchvision
from rbtools.spaces import zoo

SHAPES = {"mnist": (1, 28, 28), "cifar": (3, 32, 32), "tiny": (3, 64, 64), "large": (3, 224, 224)}


def built(name, classes=10, shape=(3, 32, 32)):
    with meta_init():
        network = models.build({"space": "zoo", "name": name}, classes=classes, shape=shape)
    return network.to("meta").eval()


BIG = ("resnet34", "resnet101", "resnet152", "vit-b", "vit-l")  # deeper or wider, but built alike
COUNTED = [(name, size) for name in zoo.FORMS for size in ("mnist", "large") if name not in BIG]
COUNTED += [(name, "cifar") for name in ("resnet34", "resnet18", "vgg19", "wrn-16-1")]
COUNTED += [(name, "tiny") for name in ("resnet18", "simplecnn", "wrn-16-1")]


@pytest.mark.parametrize(("name", "size"), COUNTED)
def test_what_is_listed_is_what_is_built(name, size):
    """Parameters exactly; multiply-adds as torch counts them in a forward pass."""
    shape = SHAPES[size]
    network = built(name, 7, shape)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # its fused kernel is not counted
    try:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            logits = network(torch.empty(1, *shape, device="meta"))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    params = sum(parameter.numel() for parameter in network.parameters())
    assert logits.shape == (1, 7)
    assert (params, counter.get_total_flops() // 2) == zoo.costs(name, 7, shape)


@pytest.mark.parametrize("name", ["simplecnn", "vgg11", "resnet18", "preactresnet18", "wrn-16-1", "deit-ti"])
def test_a_hollow_network_is_the_network(name):
    """Built with numbers it has the same names and shapes; this also draws every initialisation once."""
    whole = models.build({"space": "zoo", "name": name}, classes=3, shape=(3, 8, 8))
    names = {key: value.shape for key, value in built(name, 3, (3, 8, 8)).state_dict().items()}
    assert {key: value.shape for key, value in whole.state_dict().items()} == names


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
    for side in (32, 64):
        images = torch.rand(2, 3, side, side)
        torch.testing.assert_close(ours(images), ours.classifier(theirs(images).mean((2, 3))))


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_the_imagenet_form_of_resnet_is_torchvisions(name):
    theirs = filled(torchvision.models.get_model(name, num_classes=5))
    ours = load(zoo_network(name, stem="imagenet"), theirs.state_dict())
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
    ("name", "blocks", "shortcut", "pool", "final"),
    [
        ("preactresnet18", [f"layer{i}.{j}" for i in range(1, 5) for j in range(2)], "shortcut.0", 4, "bn"),
        (
            "preactresnet18-kuangliu",
            [f"layer{i}.{j}" for i in range(1, 5) for j in range(2)],
            "shortcut.0",
            4,
            None,
        ),
        (
            "wrn-16-2",
            [f"block{i}.layer.{j}" for i in range(1, 4) for j in range(2)],
            "convShortcut",
            8,
            "bn1",
        ),
    ],
)
def test_preactivation_networks_compute_the_published_function(name, blocks, shortcut, pool, final):
    network = filled(zoo_network(name))
    state = network.state_dict()
    images = torch.rand(2, 3, 32, 32)
    x = F.conv2d(images, state["conv1.weight"], padding=1)
    for place in blocks:
        own = {key.removeprefix(f"{place}."): v for key, v in state.items() if key.startswith(f"{place}.")}
        stage, number = place.lstrip("layerbock").split(".")[0], place.split(".")[-1]
        x = preactivation_block(own, x, 2 if stage != "1" and number == "0" else 1, f"{shortcut}.weight")
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


def test_average_pooling_is_the_same_as_a_fixed_one_at_its_size():
    """28 pixels pool to 14, 7, 4, 2, 1: the last stages see one value where kuangliu's would see none."""
    network = filled(zoo_network("vgg11", shape=(1, 28, 28)))
    sizes = []
    for module in network.features:
        if isinstance(module, nn.MaxPool2d):
            module.register_forward_hook(lambda _m, _i, output: sizes.append(output.shape[-1]))
    network(torch.rand(1, 1, 28, 28))
    assert sizes == [14, 7, 4, 2, 1]
