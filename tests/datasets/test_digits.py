"""digits: the constants known without loading it are those of the data."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from rbtools import datasets
from rbtools.datasets import content_hash, digits
from rbtools.errors import RbError


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
        assert found.images.dtype == torch.uint8 and found.labels.dtype == torch.int64
        assert found.images.squeeze(1).tolist() == images
        assert found.labels.tolist() == labels
        assert (found.name, found.split, found.classes, len(found)) == ("digits", split, 10, len(labels))


def test_description_is_that_of_the_data():
    about = datasets.describe("digits")
    train, test = (datasets.load("digits", split) for split in ("train", "test"))
    assert about.sizes == {"train": len(train), "test": len(test)}
    assert about.shape == tuple(train.images.shape[1:])
    assert about.class_names == train.class_names == [str(digit) for digit in range(10)]
    pixels = train.images.double() / 255
    assert about.mean == (round(float(pixels.mean()), 4),)
    assert about.std == (round(float(pixels.std(correction=0)), 4),)


@pytest.mark.parametrize("split", ["train", "test"])
def test_fingerprint_is_that_of_the_data_and_frozen(split):
    found = datasets.load("digits", split)
    images, labels = found.images.numpy(), found.labels.numpy()
    expected = content_hash.pixels_hash([images[:100], images[100:]], labels)
    assert datasets.fingerprint("digits", split) == expected
    frozen = {"train": "17fbab78aab50668", "test": "570e84577587ebb2"}
    assert expected.startswith(frozen[split])


def test_file_read_directly_equals_what_scikit_learn_gives(monkeypatch):
    read = inspect.unwrap(digits.raw)  # tests keep what it gave
    direct = read()
    monkeypatch.setattr(digits.Path, "is_file", lambda self: False)
    through = read()
    for one, other in zip(direct, through, strict=True):
        assert one.dtype == other.dtype and np.array_equal(one, other)


def test_other_digits_than_ever_are_refused(monkeypatch):
    read, (pixels, labels) = digits.raw, digits.raw()
    monkeypatch.setattr(digits, "raw", lambda: (pixels[::-1], labels[::-1]))
    with pytest.raises(RbError, match="not the ones that rbtools knows"):
        datasets.load("digits", "test")
    monkeypatch.setattr(digits, "raw", inspect.unwrap(read))
    monkeypatch.setattr(digits.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RbError, match="pip install scikit-learn"):
        datasets.load("digits", "test")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: datasets.load("digits", "tets"), "no split 'tets'. Did you mean 'test'\\? It has: train"),
        (lambda: datasets.fingerprint("digits", "val"), "no split 'val'"),
        (lambda: datasets.describe("digits:x"), "takes no argument, found 'digits:x'"),
        (lambda: datasets.describe("digits", class_map="map.json"), "class map map.json does not exist"),
        (lambda: datasets.describe("digit"), "Unknown data set 'digit'. Did you mean 'digits'"),
        (lambda: datasets.describe("cifar1"), "Unknown data set 'cifar1'. .*Known: digits, .*cifar10"),
    ],
)
def test_wrong_names_are_answered(call, message):
    with pytest.raises(RbError, match=message):
        call()
