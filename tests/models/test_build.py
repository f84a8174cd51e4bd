"""Building networks from architecture records, and the errors for records that describe none."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from rbtools import models
from rbtools.errors import RbError
from rbtools.models.normalize import Normalized


def build(arch, classes=10, shape=(3, 32, 32)):
    return models.build(arch, classes=classes, shape=shape)


def test_importing_the_registry_does_not_import_torch():
    code = "import sys, rbtools.models; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_initial_weights_follow_torchs_seed():
    arch = {"space": "nasbench201", "index": 0, "channels": 2, "cells": 1}
    first, second = (torch.manual_seed(3) and build(arch).state_dict() for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize(
    ("arch", "said"),
    [
        ({}, "has no space"),
        ({"space": "nasbench21"}, "Did you mean 'nasbench201'"),
        ({"space": "zoo", "name": "resnet81"}, "Did you mean 'resnet18'"),
        ({"space": "zoo"}, "no model"),
    ],
)
def test_unknown_architectures_name_the_near_misses(arch, said):
    with pytest.raises(RbError, match=said):
        build(arch)


def test_normalisation_is_the_first_layer():
    images = torch.rand(4, 3, 5, 5)
    mean, std = [0.4914, 0.4822, 0.4465], [0.2471, 0.2435, 0.2616]
    model = Normalized(torch.nn.Identity(), mean, std)
    for channel in range(3):
        expected = (images[:, channel] - mean[channel]) / std[channel]
        torch.testing.assert_close(model(images)[:, channel], expected)
    assert {name for name, _ in model.named_buffers()} == {"mean", "std"}
    shaped = torch.tensor(mean).view(1, 3, 1, 1)
    assert torch.equal(Normalized(torch.nn.Identity(), shaped, std)(images), model(images))


@pytest.mark.parametrize(
    ("mean", "std"),
    [([0.5] * 3, [0.2, 0.0, 0.2]), ([float("nan")], [1.0]), ([0.5], [-1.0]), ([0.5] * 3, [1.0])],
)
def test_numbers_that_cannot_normalise_are_refused(mean, std):
    with pytest.raises(RbError, match="mean"):
        Normalized(torch.nn.Identity(), mean, std)


def test_torchvision_imports_and_what_is_declared_is_what_was_missing():
    from rbtools.models import torchvision_import

    has_operators = torchvision_import.torchvision.extension._has_ops()
    assert bool(torchvision_import._declared) == (not has_operators)
    assert torchvision_import.declare_missing_operators() == []
    flip = torchvision_import.torchvision.transforms.RandomHorizontalFlip(p=1.0)
    image = torch.arange(6).view(1, 2, 3)
    assert torch.equal(flip(image), image.flip(-1))
