"""The theory's networks: equations 1 and 2 written out, their initial weights, and the paper's loss."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from rbtools import models
from rbtools.errors import RbError
from rbtools.spaces import describe, space


def build(arch, classes=10, shape=(1, 4, 4)):
    torch.manual_seed(0)
    return models.build(arch, classes=classes, shape=shape)


def test_equations_1_and_2():
    model = build({"space": "fcnn", "str": "relu/tanh+skip/swish", "width": 5})
    images = torch.rand(3, 1, 4, 4)
    first, second, third = (layer.weight for layer in model.layers)
    one = (images.flatten(1) @ first.T).relu()
    two = torch.tanh(one @ second.T) / 4 + one
    pre = two @ third.T
    three = pre * torch.sigmoid(pre) / 4
    torch.testing.assert_close(model(images), three @ model.last.weight.T)
    model = build({"space": "rescnn", "str": "leaky3/sigmoid5+skip", "width": 6})
    first, second = (layer.weight for layer in model.layers)
    pre = F.conv2d(images, first, padding=1)
    one = torch.where(pre > 0, pre, 0.01 * pre)
    two = torch.sigmoid(F.conv2d(one, second, padding=2)) / 3 + one
    torch.testing.assert_close(model(images), two.flatten(1) @ model.last.weight.T)


@pytest.mark.parametrize(("name", "layers"), [("fcnn", "relu/tanh+skip"), ("rescnn", "relu3/tanh3+skip")])
def test_networks_that_rb_arch_lists_see_images_of_norm_one(name, layers):
    listed = space(name).arch(0, classes=10, shape=(1, 4, 4))
    assert listed["inputs"] == "unit" and "inputs" not in describe(
        {"space": name, "str": layers}, 10, (1, 4, 4)
    )
    plain, unit = (build({"space": name, "str": layers, **more}) for more in ({}, {"inputs": "unit"}))
    images = torch.rand(3, 1, 4, 4)
    scaled = images / images.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    torch.testing.assert_close(unit(images), plain(scaled))
    torch.testing.assert_close(unit(7 * images), unit(images))
    assert not torch.allclose(plain(images), unit(images))
    assert unit(torch.zeros_like(images)).isfinite().all()
    with pytest.raises(RbError, match="has the inputs 'normal'"):
        build({"space": name, "str": layers, "inputs": "normal"})


@pytest.mark.parametrize("name", ["fcnn", "rescnn"])
def test_the_weights_have_variance_one_by_width_and_count_as_the_record_says(name):
    arch = space(name).arch(space(name).size - 1, classes=10, shape=(1, 8, 8))
    model = build(arch, shape=(1, 8, 8))
    assert sum(p.numel() for p in model.parameters()) == arch["params"]
    for parameter in model.state_dict().values():
        sigma = parameter.numel() ** -0.5
        assert abs(float(parameter.square().mean()) * arch["width"] - 1) < 6 * sigma
        assert abs(float(parameter.mean())) * arch["width"] ** 0.5 < 5 * sigma
