"""imagefolder:PATH: pixels and order of torchvision's ImageFolder, and an answer to every odd folder."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rbtools import datasets
from rbtools.datasets.tree import scan
from rbtools.errors import RbError
from tests.datasets.archives import Memory, error_of, pixels
from tests.fingerprints import fingerprint


def write(path, seed=0, size=(6, 5), mode="RGB"):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = {"L": size, "P": size, "RGBA": (*size, 4)}.get(mode, (*size, 3))
    Image.fromarray(pixels(seed, *shape)).convert(mode).save(path)
    return path


@pytest.fixture
def photos(tmp_path):
    """Two classes, three images in train and four in test, one of them in a folder below its class."""
    root = tmp_path / "photos"
    train = ["train/dog/a.png", "train/cat/b.png", "train/dog/c.png"]
    test = ["test/dog/9.png", "test/cat/10.png", "test/cat/9.png", "test/cat/more/1.png"]
    for seed, name in enumerate([*train, *test]):
        write(root / name, seed)
    return root


def named(root):
    return f"imagefolder:{root}"


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK"])
def test_every_mode_becomes_rgb_as_pillow_converts_it(tmp_path, mode):
    """Greyscale too: three equal channels, as torchvision's ImageFolder gives."""
    file = write(tmp_path / "d/test/a" / ("x.TIF" if mode == "CMYK" else "x.Png"), 3, mode=mode)
    found = datasets.load(named(tmp_path / "d"), "test").images[0]
    assert np.array_equal(found.permute(1, 2, 0).numpy(), np.asarray(Image.open(file).convert("RGB")))
    if mode == "L":
        assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
        grey = f"{named(tmp_path / 'd')}:grey"  # one channel where it is asked for
        assert torch.equal(datasets.load(grey, "test").images[0], found[:1])
        assert datasets.describe(grey).shape == (1, 6, 5)
        assert fingerprint(grey, "test") != fingerprint(named(tmp_path / "d"), "test")


def test_hidden_and_other_files_are_skipped_and_counted(photos):
    whole = datasets.load(named(photos), "test")
    for name in (".DS_Store", "._9.png", "notes.txt", ".thumbs/1.png", "../.hidden/1.png", "../README.md"):
        (photos / "test/cat" / name).parent.mkdir(exist_ok=True)
        (photos / "test/cat" / name).write_text("x")
    assert torch.equal(datasets.load(named(photos), "test").images, whole.images)
    about = datasets.describe(named(photos))
    assert about.sizes["test"] == 4 and about.skipped == 3
    for name in ("test/cat/a.gif", "train/dog/b.GIF", "test/dog/c.jfif", "test/dog/.hidden"):
        (photos / name).write_text("x")
    assert ": 4 (2 .gif, 1 .txt, 1 .jfif)." in datasets.describe(named(photos)).notes[0]


def test_folders_that_are_all_numbers_are_ordered_as_numbers(tmp_path):
    for name in ("0", "1", "2", "10", "11"):
        write(tmp_path / "d" / "test" / name / "x.png", int(name))
    found = datasets.load(named(tmp_path / "d"), "test")
    assert found.class_names == ["0", "1", "2", "10", "11"]
    assert np.array_equal(found.images[2].permute(1, 2, 0).numpy(), pixels(2, 6, 5, 3))
    write(tmp_path / "d" / "test" / "b" / "x.png")
    assert datasets.describe(named(tmp_path / "d")).class_names == ["0", "1", "10", "11", "2", "b"]


def test_an_empty_folder_is_a_class_without_images(photos):
    for split in ("train", "test"):
        (photos / split / "bird").mkdir()
    about = datasets.describe(named(photos))
    assert (about.class_names, about.present) == (["bird", "cat", "dog"], (1, 2))
    assert datasets.load(named(photos), "test").labels.tolist() == [1, 1, 1, 2]


def test_val_serves_as_test_only_where_there_is_no_test(photos):
    (photos / "test").rename(photos / "val")
    assert datasets.describe(named(photos)).sizes == {"train": 3, "test": 4}
    assert len(datasets.load(named(photos), "test")) == 4
    for name in ("cat", "dog"):
        write(photos / "test" / name / "only.png", 99)
    assert datasets.describe(named(photos)).sizes == {"train": 3, "test": 2}
    (photos / "train").rename(photos / "old")  # one split is enough
    assert datasets.describe(named(photos)).sizes == {"test": 2}


def test_order_is_that_of_torchvision(tmp_path):
    """torchvision sorts class folders, then the folders os.walk finds by path, then their files."""
    root = tmp_path / "d/test"
    for name in ["b/z.png", "b/A.png", "b/x/1.png", "b/x-y/1.png", "b/x/y/1.png", "B/1.png", "a b/1.png"]:
        write(root / name)
    expected = []
    for label, folder in enumerate(sorted(entry.name for entry in os.scandir(root))):
        for base, _, names in sorted(os.walk(root / folder, followlinks=True)):
            expected += [(label, os.path.join(base, name)) for name in sorted(names)]
    tree = scan(root)
    assert [(label, tree.path(i)) for i, (label, _) in enumerate(tree.files)] == expected


@pytest.mark.parametrize(
    "text",
    [
        *('{"dog": 0, "cat": 1}', '["dog", "cat"]', "dog 0\ncat 1\n", "cat: 1\ndog, 0", "\ufeffdog\ncat\n"),
        "# the model's order\n\ncat\t1\r\ndog\t0\r\n",
    ],
)
def test_class_map_gives_the_models_order(photos, tmp_path, text):
    file = tmp_path / "map"
    file.write_text(text, "utf-8", newline="")
    found = datasets.load(named(photos), "test", class_map=file)
    assert found.class_names == ["dog", "cat"] and found.labels.tolist() == [1, 1, 1, 0]
    assert torch.equal(found.images, datasets.load(named(photos), "test").images)
    for name, number in (("dog", 2), ("cat", 1)):  # a name that ends in a number is not a name and an index
        for split in ("train", "test"):
            (photos / split / name).rename(photos / split / f"class {number}")
    file.write_text("class 2\nclass 1\n")
    assert datasets.describe(named(photos), class_map=file).class_names == ["class 2", "class 1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"cat": 0}', "leaves out the class folder dog. Expected an index for each of the 2 class folders."),
        ('{"cat": 0, "dgo": 1}', "names 'dgo', which is not a class folder. Did you mean 'dog'?"),
        ('{"cat": 0, "cat": 1, "dog": 1}', "names 'cat' twice"),
        ('{"cat": 0, "dog": 0}', "gives index 0 to 'cat' and to 'dog'"),
        ('{"cat": 0, "dog": 999999}', "gives 'dog' the index 999999. Expected the number of the class"),
        ('{"cat": "0", "dog": 1}', 'contains ["cat", "0"]. Expected JSON'),
        ("cat 0\ndog", "has the line 'dog'. Expected a name and an index: cat 3."),
        ("cat\ncat\ndog", "names 'cat' twice"),
    ],
)
def test_wrong_class_map_is_explained(photos, tmp_path, text, message):
    file = tmp_path / "map"
    file.write_text(text)
    found = error_of(datasets.describe, named(photos), class_map=file)
    assert message in found and str(file) in found


@pytest.mark.parametrize("damage", ["text", "cut", "loop", "deep"])
def test_unreadable_image_is_named(photos, damage):
    victim = photos / "test/cat/9.png"
    data = victim.read_bytes()
    victim.unlink()
    if damage == "loop":
        victim.symlink_to(victim)
    elif damage == "deep":
        Image.fromarray(np.zeros((6, 5), np.uint16)).save(victim)
    else:
        victim.write_bytes({"text": b"<html>", "cut": data[:-30]}[damage])
    message = error_of(datasets.load, named(photos), "test")
    assert str(victim) in message and ("more than 8 bits per channel" in message) is (damage == "deep")


def test_splits_with_other_classes_are_refused(photos):
    write(photos / "train/bird/1.png")
    write(photos / "test/fish/1.png")
    message = error_of(datasets.load, named(photos), "test")
    assert f"{photos / 'train'} lacks fish" in message and f"{photos / 'test'} lacks bird" in message


@pytest.mark.parametrize("name", ["val", "pictures"])
def test_class_folders_alone_are_the_test_split_and_that_is_said(photos, name):
    whole = datasets.load(named(photos), "test")
    folder = (photos / "test").rename(photos.parent / name)
    about, found = datasets.describe(named(folder)), datasets.load(named(folder), "test")
    assert about.sizes == {"test": 4} and "its images are used as the split test." in about.notes[0]
    assert torch.equal(found.images, whole.images) and torch.equal(found.labels, whole.labels)


def test_fingerprint_is_what_the_docstring_says(photos, tmp_path):
    """Class names in order, then each file's relative path and SHA-256, ended by zero bytes."""
    fields = ["rbtools imagefolder 1", "2", "cat", "dog"]
    for name in ("cat/10.png", "cat/9.png", "cat/more/1.png", "dog/9.png"):
        fields += [name, hashlib.sha256((photos / "test" / name).read_bytes()).hexdigest()]
    expected = hashlib.sha256(b"".join(field.encode() + b"\0" for field in fields)).hexdigest()
    assert fingerprint(named(photos), "test") == expected
    for text, same in (("dog\ncat", False), ('{"cat": 0, "dog": 1}', True)):
        (tmp_path / "map").write_text(text)
        found = fingerprint(named(photos), "test", class_map=tmp_path / "map")
        assert (found == expected) is same
    os.utime(photos / "test/cat/9.png", (0, 0))  # a file just written may change again: no time hides that
    cache = Memory()
    fingerprint(named(photos), "test", cache=cache)
    assert not cache


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_an_image_that_is_no_plain_file_is_not_waited_for(tmp_path, kind):
    write(tmp_path / "test/a/0.png")
    odd = tmp_path / "test/a/1.png"
    os.mkfifo(odd) if kind == "pipe" else odd.symlink_to("/dev/zero")
    with pytest.raises(RbError, match=r"1.png.*it is not a plain file"):
        fingerprint(f"imagefolder:{tmp_path}", "test")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda root: root / "nowhere", "does not exist"),
        (lambda root: root / "test/cat/9.png", "is a file"),
        (lambda root: write(root / "flat/test/1.png").parents[1], "has no class folders"),
        (lambda root: root.parent, "no train or test folder"),
        (lambda root: root / "train", "is itself a split: it contains the class folders cat, dog"),
        (lambda root: write(root / "test/dog/9.png", size=(8, 8)).parents[2], "is 8x8"),
    ],
)
def test_a_path_that_holds_nothing_useful_is_explained(photos, change, said):
    assert said in error_of(datasets.load, named(change(photos)), "test")


@pytest.mark.parametrize("target", [".", "..", "../..", "/"])
def test_a_link_in_a_loop_is_named(photos, target):
    link = photos / "test/cat/loop"
    link.symlink_to(photos / "test/cat" / target if target != "/" else target)
    message = error_of(datasets.describe, named(photos))
    assert f"{link} is a link to a folder that contains it" in message
