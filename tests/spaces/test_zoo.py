"""The zoo: published parameter counts, what each model adapts to, and what it refuses."""

from __future__ import annotations

import pytest

from rbtools.errors import RbError
from rbtools.spaces import describe, sized, space
from rbtools.spaces.zoo import FORMS, completed


def costs(name, classes=10, shape=(3, 32, 32), **fields):
    arch = describe({"space": "zoo", "name": name, **fields}, classes, shape)
    return arch["params"], arch["macs"]


CIFAR, TINY, LARGE, MNIST = (3, 32, 32), (3, 64, 64), (3, 224, 224), (1, 28, 28)


@pytest.mark.parametrize(
    ("name", "classes", "shape", "params"),
    [
        ("simplecnn", 10, MNIST, 1_199_882),
        ("vgg19", 10, CIFAR, 20_040_522),
        ("resnet18", 10, CIFAR, 11_173_962),
        ("resnet18", 200, TINY, 11_271_432),
        ("resnet18", 50, LARGE, 11_202_162),
        ("resnet18", 1000, LARGE, 11_689_512),
        ("resnet34", 10, CIFAR, 21_282_122),
        ("resnet50", 1000, LARGE, 25_557_032),
        ("resnet152", 1000, LARGE, 60_192_808),
        ("preactresnet18", 10, CIFAR, 11_172_170),
        ("preactresnet18-kuangliu", 10, CIFAR, 11_171_146),
        ("wrn-28-10", 10, CIFAR, 36_479_194),
        ("wrn-34-10", 10, CIFAR, 46_160_474),
        ("wrn-40-2", 10, CIFAR, 2_243_546),
        ("vit-s", 10, CIFAR, 21_669_514),
        ("vit-b", 10, LARGE, 85_806_346),
        ("vit-l", 10, TINY, 303_311_882),
        ("deit-ti", 10, CIFAR, 5_526_346),
        ("deit-s", 10, LARGE, 21_669_514),
    ],
)
def test_parameters_are_the_published_ones(name, classes, shape, params):
    assert costs(name, classes, shape)[0] == params


@pytest.mark.parametrize(
    ("name", "billions"), [("resnet18", 1.814), ("resnet34", 3.664), ("resnet50", 4.089), ("vit-b", 17.564)]
)
def test_multiply_adds_are_those_that_torchvision_publishes(name, billions):
    assert costs(name, 1000, LARGE)[1] / 1e9 == pytest.approx(billions, abs=6e-4)


@pytest.mark.parametrize(
    ("classes", "shape", "params", "macs"),
    [  # counted on torchvision's ResNet in this form
        (10, CIFAR, 11_173_962, 555_422_720),
        (200, TINY, 11_271_432, 2_221_772_800),
        (10, MNIST, 11_172_810, 455_800_832),
        (10, (3, 8, 8), 11_173_962, 34_718_720),
        (7, (3, 33, 21), 11_172_423, 440_505_280),
    ],
)
def test_resnet18_for_small_images(classes, shape, params, macs):
    assert costs("resnet18", classes, shape) == (params, macs)


def test_a_resnet_takes_its_stem_from_the_images_unless_the_record_says():
    named = {"space": "zoo", "name": "resnet18"}
    assert describe(named, 10, (3, 96, 96))["stem"] == "cifar"
    assert describe(named, 10, (3, 97, 128))["stem"] == "imagenet"
    kept = describe({**named, "stem": "cifar"}, 10, LARGE)
    assert (kept["stem"], kept["params"]) == ("cifar", 11_173_962)
    with pytest.raises(RbError, match=r"not support the stem 'tall'\. Choose from: cifar, imagenet"):
        describe({**named, "stem": "tall"}, 10, LARGE)


def test_a_transformer_of_other_patches_is_counted_for_them():
    fields = {"name": "vit-s", "patch": 4, "side": 32}
    assert costs(**fields) == costs(**fields, shape=LARGE)  # images are resized to its own side
    with pytest.raises(RbError, match="with sides of 30 into patches of 4"):
        completed({**fields, "side": 30}, CIFAR)


def test_the_zoo_refuses_what_it_does_not_have():
    zoo = space("zoo")
    first = next(iter(FORMS))
    for call, words in [
        (lambda: zoo.find("99"), f"Indices go from 0 to {len(FORMS) - 1}: {first}, "),
        (lambda: zoo.neighbours(0), f"{first} has no neighbours"),
        (lambda: sized("zoo", channels=8), "The networks of the space zoo have no channels"),
        (lambda: costs("resnet18", 10, (3, 0, 32)), "images of shape"),
        (lambda: costs("simplecnn", 10, (3, 5, 32)), "at least 6x6 pixels, but these have 5x32"),
        (lambda: costs("wrn-29-10"), "Unknown model 'wrn-29-10'"),
        (lambda: costs("wrn-28-0"), "Unknown model"),
    ]:
        with pytest.raises(RbError, match=words):
            call()
