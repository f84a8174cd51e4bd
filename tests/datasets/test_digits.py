"""digits, some of its classes, and class maps: the constants known without loading are those of the data."""

from __future__ import annotations

import inspect
import json

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from rbtools import datasets
from rbtools.datasets import content_hash, digits
from rbtools.errors import RbError
from tests.fingerprints import fingerprint


def test_pixels_and_split_follow_the_written_rule():
    """Against scikit-learn's own function: every fifth example of a class is a test example."""
    loaded = load_digits()
    seen = dict.fromkeys(range(10), 0)
    expected = {"train": ([], []), "test": ([], [])}
    for image, label in zip(loaded.images, loaded.target, strict=True):
        seen[int(label)] += 1
        images, labels = expected["test" if seen[int(label)] % 5 == 0 else "train"]
        images.append([[int(np.floor(value * 255 / 16 + 0.5)) for value in row] for row in image])
        labels.append(int(label))
    for split, (images, labels) in expected.items():
        found = datasets.load("digits", split)
        assert found.images.squeeze(1).tolist() == images and found.labels.tolist() == labels


def test_fingerprint_is_that_of_the_data_and_frozen():
    for split, frozen in (("train", "17fbab78aab50668"), ("test", "570e84577587ebb2")):
        found = datasets.load("digits", split)
        images, labels = found.images.numpy(), found.labels.numpy()
        expected = content_hash.pixels_hash([images[:100], images[100:]], labels)
        assert fingerprint("digits", split) == expected
        assert expected.startswith(frozen)


def test_other_digits_than_ever_are_refused(monkeypatch):
    read, (pixels, labels) = digits.raw, digits.raw()
    monkeypatch.setattr(digits, "raw", lambda: (pixels[::-1], labels[::-1]))
    with pytest.raises(RbError, match="differ from those that rbtools expects"):
        datasets.load("digits", "test")
    monkeypatch.setattr(digits, "raw", inspect.unwrap(read))
    monkeypatch.setattr(digits.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RbError, match="pip install scikit-learn"):
        datasets.load("digits", "test")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: datasets.load("digits", "tets"), "no split 'tets'. Did you mean 'test'\\? It has: train"),
        (lambda: datasets.describe("digits:x"), "takes no argument, found 'digits:x'"),
        (lambda: datasets.describe("digits:classes=3"), "names 1 classes"),
        (lambda: datasets.describe("digits:classes=3/x"), "has no class 'x'"),
        (lambda: datasets.describe("digits", class_map="map.json"), "class map map.json does not exist"),
        (lambda: datasets.describe("cifar1"), "Unknown data set 'cifar1'. .*Known: digits, .*cifar10"),
    ],
)
def test_wrong_names_are_answered(call, message):
    with pytest.raises(RbError, match=message):
        call()


def test_labels_are_places_in_the_list() -> None:
    name = "digits:classes=8/3"
    whole, two = datasets.load("digits", "test"), datasets.load(name, "test")
    wanted = (whole.labels == 3) | (whole.labels == 8)
    assert torch.equal(two.images, whole.images[wanted])
    assert torch.equal(two.labels, (whole.labels[wanted] == 3).long())
    assert (two.classes, two.class_names) == (2, ["8", "3"])
    about = datasets.describe(name)
    assert about.classes == 2 and about.sizes == {
        part: len(datasets.load(name, part)) for part in about.sizes
    }
    names = (name, "digits:classes=3/8", "digits:classes=3/7", "digits")
    assert len({fingerprint(name, split) for name in names for split in ("train", "test")}) == 8


@pytest.mark.parametrize("least", ["0", "8G"])  # read as they are used; in memory
def test_a_class_map_gives_the_labels_of_the_network(tmp_path, monkeypatch, least: str) -> None:
    monkeypatch.setenv("RB_IMAGE_MEMORY", least)
    images = torch.arange(6).reshape(6, 1, 1, 1).expand(6, 1, 2, 2).to(torch.uint8).numpy()
    file = tmp_path / "x.npz"
    np.savez(file, images=images, labels=[0, 1, 2, 0, 1, 2], class_names=["cat", "dog", "cow"])
    order = json.dumps(["bird", "dog", "emu", "cat"])  # of a record, which leaves the cow out
    about = datasets.describe(f"npz:{file}", class_map=order)
    found = datasets.load(f"npz:{file}", "test", class_map=order)
    assert (about.classes, about.present, about.sizes) == (4, (1, 3), {"test": 4})
    assert found.labels.tolist() == [3, 1, 3, 1] and found.images[:][:, 0, 0, 0].tolist() == [0, 1, 3, 4]
    prints = {fingerprint(f"npz:{file}", "test", class_map=one) for one in (order, None)}
    assert len(prints) == 2
