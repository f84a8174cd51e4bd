"""npz:PATH: every spelling of splits and axes, and an answer to everything else."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch

from rbtools import datasets
from rbtools.errors import RbError
from tests.datasets import archives
from tests.datasets.archives import error_of
from tests.fingerprints import fingerprint

IMAGES = archives.pixels(0, 6, 3, 8, 5)
LABELS = np.array([0, 1, 2, 2, 1, 0])


@pytest.fixture
def save(tmp_path):
    """Write arrays into a file; returns the data set's name."""

    def saved(packed=False, **arrays):
        path = tmp_path / "some.npz"
        (np.savez_compressed if packed else np.savez)(path, **arrays)
        return f"npz:{path}"

    return saved


def check(name, split, images=IMAGES, labels=LABELS):
    found = datasets.load(name, split)
    archives.check(found, images, labels)
    assert found.images.is_contiguous()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "names", ["images labels", "x y", "X y", "x_test y_test", "test_images test_labels", "X_test y_test"]
)
def test_every_spelling_is_read(save, names, packed, monkeypatch):
    images, labels = names.split()
    name = save(packed, **{images: IMAGES, labels: LABELS})
    check(name, "test")
    about = datasets.describe(name)
    assert (about.sizes, about.shape, about.classes) == ({"test": 6}, (3, 8, 5), 3)
    monkeypatch.setenv("RB_IMAGE_MEMORY", "100")
    streamed = datasets.load(name, "test").images
    assert not isinstance(streamed, torch.Tensor)
    assert np.array_equal(streamed[torch.tensor([4, 0, 4])].numpy(), IMAGES[[4, 0, 4]])


@pytest.mark.parametrize("packed", [False, True])
def test_splits_and_axes_of_known_files(save, packed):
    """MedMNIST has labels (N, 1) and a val split, Keras greyscale images (N, H, W)."""
    last = IMAGES.transpose(0, 2, 3, 1)
    arrays = {"train_images": last, "train_labels": LABELS[:, None].astype(np.uint8)}
    arrays |= {"val_images": last[:2], "val_labels": LABELS[:2, None].astype(np.uint8)}
    arrays |= {"test_images": last[:3], "test_labels": LABELS[:3, None].astype(np.uint8)}
    name = save(packed, **arrays)
    assert datasets.describe(name).sizes == {"train": 6, "test": 3, "val": 2}
    for split, count in (("train", 6), ("val", 2), ("test", 3)):
        check(name, split, IMAGES[:count], LABELS[:count])
    grey = IMAGES[:, 0]
    name = save(packed, x_train=grey, y_train=LABELS, x_test=grey[:4], y_test=LABELS[:4])
    check(name, "test", grey[:4, None], LABELS[:4])
    assert datasets.describe(name).augment == ()


def test_other_layouts(save):
    grey = IMAGES[:, :1]
    for given in (grey.transpose(0, 2, 3, 1), grey):
        check(save(images=given, labels=LABELS), "test", grey)
    check(save(images=np.asfortranarray(IMAGES), labels=LABELS), "test")
    assert datasets.describe(save(images=grey, labels=LABELS, classes=10)).classes == 10
    name = save(images=grey, labels=LABELS, class_names=np.array(["a", "b", "c", "d"]))
    assert datasets.load(name, "test").class_names == ["a", "b", "c", "d"]


def test_fingerprint_is_of_the_content(save, settled, overwrite):
    name = save(images=IMAGES, labels=LABELS)
    first = fingerprint(name, "test")
    same = save(packed=True, x_test=IMAGES.transpose(0, 2, 3, 1), y_test=LABELS.astype(np.uint8))
    assert fingerprint(same, "test") == first
    assert fingerprint(save(images=IMAGES, labels=LABELS[::-1].copy()), "test") == first
    assert fingerprint(save(images=IMAGES, labels=1 - LABELS % 2), "test") != first
    assert fingerprint(save(images=IMAGES[::-1].copy(), labels=LABELS), "test") != first
    cache = archives.Memory()
    name = save(images=IMAGES, labels=LABELS)
    assert fingerprint(name, "test", cache=cache) == first == next(iter(cache.values()))
    np.savez(other := io.BytesIO(), images=IMAGES[::-1], labels=LABELS)
    overwrite(Path(name.removeprefix("npz:")), other.getvalue())
    assert fingerprint(name, "test", cache=cache) != first


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": IMAGES}, "not a data set: it contains the arrays a. Expected an .npz file with `test_images`"),
        ({"images": IMAGES / 255, "labels": LABELS}, "`images` is float64; convert images in [0, 1]"),
        ({"images": IMAGES[:, :2], "labels": LABELS}, "the shape (6, 2, 8, 5), where the axis with 1 or 3"),
        ({"images": IMAGES[:, :, :, :3], "labels": LABELS}, "the shape (6, 3, 8, 3), where the axis with 1"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, "the shape (0, 3, 8, 5)"),
        ({"images": IMAGES, "labels": LABELS[:5]}, "it has 6 images and 5 labels in the split test"),
        ({"images": IMAGES, "labels": LABELS / 2}, "`labels` is float64 (6,), which is not a whole number"),
        ({"images": IMAGES, "labels": LABELS, "classes": 2}, "image 2 the label 2, but has only 2 classes"),
        ({"images": IMAGES, "labels": np.array([{}] * 6, object)}, "allow_pickle=False"),
        ({"images": np.array([[[{}]]], object), "labels": LABELS[:1]}, "`images` is object"),
        ({"x": IMAGES, "y": LABELS, "x_train": IMAGES[:, :1], "y_train": LABELS}, "different"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_wrong_arrays_are_explained(save, arrays, message, packed):
    name = save(packed, **arrays)
    with pytest.raises(RbError) as caught:
        datasets.describe(name)
        datasets.load(name, "test")
    assert message in str(caught.value) and "some.npz" in str(caught.value)


@pytest.mark.parametrize("damage", ["empty", "html", "cut", "flip", "npy"])
def test_damaged_file_is_named(save, tmp_path, damage):
    name = save(packed=damage == "flip", images=IMAGES, labels=LABELS)
    path = tmp_path / "some.npz"
    data = bytearray(path.read_bytes())
    data[200] ^= 255
    broken = {"empty": b"", "html": b"<html>", "cut": data[:-40], "flip": data, "npy": archives.npy(IMAGES)}
    path.write_bytes(broken[damage])
    message = error_of(datasets.load, name, "test")
    assert f"The file {path} " in message and "Expected" in message
    assert {"empty": "is empty", "html": "is an HTML page"}.get(damage, "cannot be read") in message
