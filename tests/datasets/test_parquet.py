"""parquet:PATH, in the layouts of the Hugging Face Hub."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch

from rbtools import datasets
from tests.datasets import archives
from tests.datasets.archives import error_of
from tests.fingerprints import fingerprint

IMAGES = archives.pixels(0, 7, 3, 6, 5)
LABELS = [2, 0, 1, 1, 0, 2, 2]


@pytest.fixture
def pa():
    import pyarrow.parquet

    return pyarrow


@pytest.fixture
def save(pa, tmp_path):
    """Write images and labels into a file below `hub`, as the Hub does."""

    def saved(file, images=IMAGES, labels=LABELS, *, names=None, encode=archives.png, **columns):
        rows = [{"bytes": encode(image), "path": None} for image in images]
        column, label = columns.pop("column", "image"), columns.pop("label", "label")
        table = pa.table({column: rows, label: pa.array(labels, pa.int64()), **columns})
        if names:
            features = {column: {"_type": "Image"}, label: {"names": names, "_type": "ClassLabel"}}
            about = json.dumps({"info": {"features": features}})
            table = table.replace_schema_metadata({"huggingface": about})
        path = tmp_path / "hub" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        pa.parquet.write_table(table, path, row_group_size=3)
        return f"parquet:{tmp_path / 'hub'}"

    return saved


def check(name, split, images=IMAGES, labels=LABELS):
    archives.check(datasets.load(name, split), images, labels)


def test_layout_of_a_repository(save):
    """data/SPLIT-00000-of-00002.parquet, with the classes named in the schema."""
    names = ["cat", "dog", "owl", "eel"]
    save("data/train-00000-of-00002.parquet", IMAGES[:4], LABELS[:4], names=names)
    save("data/train-00001-of-00002.parquet", IMAGES[4:], LABELS[4:], names=names)
    name = save("data/test-00000-of-00001.parquet", IMAGES[:2], LABELS[:2], names=names)
    about = datasets.describe(name)
    assert about.sizes == {"test": 2, "train": 7} and about.shape == (3, 6, 5) and about.class_names == names
    check(name, "train")
    check(name, "test", IMAGES[:2], LABELS[:2])


def test_layout_of_the_converted_branch(save):
    """CONFIG/SPLIT/0000.parquet; CIFAR-10's columns are img and label, CIFAR-100's also coarse_label."""
    save("plain_text/train/0000.parquet", column="img")
    columns = {"column": "img", "label": "fine_label", "coarse_label": [0] * 3}
    name = save("plain_text/test/0000.parquet", IMAGES[:3], [5, 0, 2], **columns)
    assert datasets.describe(name).sizes == {"test": 3, "train": 7}
    check(name, "test", IMAGES[:3], [5, 0, 2])
    assert datasets.describe(name).classes == 6  # nothing names them: the highest label of all splits


def test_one_file_is_the_split_that_its_name_says_or_test(save, tmp_path, monkeypatch):
    for stem, split in (("validation-00000-of-00001", "test"), ("mine", "test"), ("train", "train")):
        save(f"{stem}.parquet")
        check(f"parquet:{tmp_path / 'hub' / stem}.parquet", split)
    monkeypatch.setenv("RB_IMAGE_MEMORY", "1")  # decoded as it is asked for
    found = datasets.load(f"parquet:{tmp_path / 'hub/train.parquet'}", "train").images
    assert not isinstance(found, torch.Tensor)
    assert np.array_equal(found[torch.tensor([6, 0, 3, 0])].numpy(), IMAGES[[6, 0, 3, 0]])


def test_validation_serves_as_test_only_where_there_is_none(save):
    name = save("data/valid-00000-of-00001.parquet")
    assert datasets.describe(name).sizes == {"test": 7}
    save("data/test-00000-of-00001.parquet", IMAGES[:1], LABELS[:1])
    assert datasets.describe(name).sizes == {"test": 1, "validation": 7}
    save("data/mine.parquet")
    assert "mine.parquet does not show its split" in error_of(datasets.describe, name)


def test_greyscale_images_have_one_channel_and_binary_columns_are_images_too(pa, save, tmp_path):
    name = save("test.parquet", IMAGES[:, 0])
    assert datasets.describe(name).shape == (1, 6, 5) and datasets.describe(name).augment == ()
    check(name, "test", IMAGES[:, :1])

    for kind in (pa.binary(), pa.large_binary()):
        column = pa.array([archives.png(image) for image in IMAGES], kind)
        table = pa.table({"photo": column, "class": pa.array(LABELS, pa.int8())})
        pa.parquet.write_table(table, tmp_path / "a.parquet")
        check(f"parquet:{tmp_path / 'a.parquet'}", "test")


def test_fingerprint_is_of_the_content(save, tmp_path):
    name = save("data/test-00000-of-00001.parquet")
    first = fingerprint(name, "test")
    (tmp_path / "hub/data/test-00000-of-00001.parquet").unlink()
    save("data/test-00000-of-00002.parquet", IMAGES[:5], LABELS[:5])
    save("data/test-00001-of-00002.parquet", IMAGES[5:], LABELS[5:])
    assert fingerprint(name, "test") == first
    save("data/test-00001-of-00002.parquet", IMAGES[5:], [0, 0])
    assert fingerprint(name, "test") != first


def test_what_is_no_data_set_is_explained(pa, tmp_path, monkeypatch):
    assert "has no .parquet file" in error_of(datasets.describe, f"parquet:{tmp_path}")
    file = tmp_path / "a.parquet"
    none = {"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())}
    for columns, said in (
        ({"text": ["a"], "label": [1]}, "(image, img). It has: text (string), label (int64)."),
        ({"image": [b"x"], "a": [1], "b": [1]}, "exactly one column of labels"),
        (none, "has no rows"),
        ({"image": [b"x", b"y"], "label": [1, None]}, "has rows without a value"),
    ):
        pa.parquet.write_table(pa.table(columns), file)
        assert said in error_of(datasets.describe, f"parquet:{file}")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "Run: pip install pyarrow" in error_of(datasets.describe, f"parquet:{file}")


def test_several_configurations_are_told_apart(save):
    save("a/test/0000.parquet")
    name = save("b/test/0000.parquet")
    assert "in several folders: " in error_of(datasets.describe, name)
    check(f"{name}/a", "test")


@pytest.mark.parametrize("damage", ["empty", "html", "cut", "noise"])
def test_damaged_file_is_named(save, tmp_path, damage):
    name, path = save("test.parquet"), tmp_path / "hub/test.parquet"
    data = path.read_bytes()
    path.write_bytes({"empty": b"", "html": b"<html>", "cut": data[:-9], "noise": b"PAR1" * 9}[damage])
    message = error_of(datasets.load, name, "test")
    assert {"empty": f"{path} is empty", "html": f"{path} is an HTML page"}.get(damage, f"{path} ") in message


@pytest.mark.parametrize(("odd", "grey"), [(0, False), (3, False), (0, True)])
def test_most_images_decide_on_the_channels(save, odd, grey):
    """A column of one kind of image with one of the other, first or later."""
    images = [image[0] if (place == odd) != grey else image for place, image in enumerate(IMAGES)]
    name = save("test.parquet", images)
    about, found = datasets.describe(name), datasets.load(name, "test").images
    assert about.shape[0] == (1 if grey else 3)
    assert "1 of 7 images checked are" in about.notes[0]
    kept = [place for place in range(7) if place != odd]
    assert np.array_equal(found[kept].numpy(), IMAGES[kept, :1] if grey else IMAGES[kept])
    for word, channels in (("grey", 1), ("rgb", 3)):
        assert datasets.load(f"{name}:{word}", "test").images.shape[1] == channels


@pytest.mark.parametrize("empty", [None, {"bytes": None, "path": "b.png"}, {"bytes": b"", "path": None}])
def test_an_empty_cell_is_named_by_its_row(pa, tmp_path, empty):
    one = {"bytes": archives.png(IMAGES[0]), "path": "a.png"}
    pa.parquet.write_table(pa.table({"image": [one, one, empty], "label": [0, 1, 0]}), tmp_path / "x.parquet")
    for call in (datasets.describe, lambda name: fingerprint(name, "test")):
        message = error_of(call, f"parquet:{tmp_path / 'x.parquet'}")
        assert f"in row 2 of {tmp_path / 'x.parquet'} cannot be read (" in message


def test_bad_images_and_labels_name_their_row(save, tmp_path):
    path = tmp_path / "hub/test.parquet"
    name = save("test.parquet", [*IMAGES[:3], IMAGES[3, :, :5]], LABELS[:4])
    assert f"in row 3 of {path} is 5x5" in error_of(datasets.load, name, "test")
    encoded = iter([archives.png(IMAGES[0]), b"no image", None])
    name = save("test.parquet", IMAGES[:3], LABELS[:3], encode=lambda image: next(encoded))
    assert f"in row 1 of {path} cannot be read" in error_of(datasets.load, name, "test")
    name = save("test.parquet", labels=[0, 1, 2, 3, 0, 0, 0], names=["a", "b", "c"])
    assert "gives image 3 the label 3, but has only 3 classes" in error_of(datasets.load, name, "test")
