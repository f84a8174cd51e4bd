"""Published data sets: each small archive in the official layout is read back byte for byte."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from rbtools import datasets
from rbtools.datasets import digits, published_files
from tests.datasets import archives
from tests.datasets.archives import check, error_of
from tests.fingerprints import fingerprint

NAMES = ["cifar10", "cifar100", "imagenet16-120", "mnist", "svhn", "cinic10", "tinyimagenet"]
FOLDERS = {"cifar10-c": "CIFAR-10-C", "cifar100-c": "CIFAR-100-C"}


def list_sums(monkeypatch, name, folder):
    """Take the files in the folder for the published ones of that data set."""
    sums = {path.name: archives.md5(path) for path in folder.rglob("*") if path.is_file()}
    files = [
        file._replace(md5=sums.get(Path(file.path).name, file.md5)) if file.dataset == name else file
        for file in published_files.published()
    ]
    monkeypatch.setattr(published_files, "published", lambda: files)


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Write a small data set into a folder, which has its size and MD5 sums from now on; returns the folder
    and split -> (images, labels)."""

    def made(name, **options):
        folder, cls = tmp_path / "sets", datasets.DATASETS.load(name)
        found = getattr(archives, name.partition("-")[0])(folder, **options)
        monkeypatch.setattr(cls, "sizes", {split: len(labels) for split, (_, labels) in found.items()})
        if name == "tinyimagenet":
            monkeypatch.setattr(cls, "class_names", tuple("012"))
        list_sums(monkeypatch, name, folder)
        return folder, found

    return made


@pytest.mark.parametrize("name", NAMES)
def test_every_split_is_read_back_byte_for_byte(make, name):
    folder, made = make(name)
    about = datasets.describe(name, folder)
    for split, (images, labels) in made.items():
        found = datasets.load(name, split, folder)
        check(found, images, labels)
        assert tuple(found.images.shape[1:]) == about.shape and about.sizes[split] == len(found)
        if name == "svhn":
            assert found.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]  # ten is zero
    if name == "cinic10":
        assert about.class_names == datasets.describe("cifar10").class_names
        same = f"imagefolder:{folder / 'CINIC-10'}"
        assert fingerprint(name, "test", folder) == fingerprint(same, "test")


@pytest.mark.parametrize("name", NAMES)
def test_data_dir_may_hold_a_folder_of_that_name_or_be_the_innermost_folder(make, name, tmp_path):
    """The files in DIR/NAME/..., and --data-dir naming the folder that directly holds them."""
    folder, made = make(name)
    split, (images, labels) = next(iter(made.items()))
    (inner,) = {path for path in folder.iterdir() if path.is_dir()} or {folder}
    if name not in ("mnist", "imagenet16-120"):
        check(datasets.load(name, split, inner), images, labels)
    if name in ("cifar10", "cifar100", "mnist", "svhn", "imagenet16-120", "tinyimagenet"):
        (tmp_path / "all").mkdir()
        shutil.move(folder, tmp_path / "all" / name)
        check(datasets.load(name, split, tmp_path / "all"), images, labels)


def test_mnist_is_read_packed_and_not(make):
    folder, made = make("mnist")
    prints = [fingerprint("mnist", split, folder) for split in made]
    shutil.rmtree(folder)
    make("mnist", packed=True)
    for split, (images, labels) in made.items():
        check(datasets.load("mnist", split, folder), images, labels)
    assert [fingerprint("mnist", split, folder) for split in made] == prints


@pytest.fixture
def imagenet50(tmp_path):
    from PIL import Image

    for number in range(50):
        for split in ("train", "val"):
            path = tmp_path / f"sets/imagenet50/{split}/n{number:02}/1.png"
            path.parent.mkdir(parents=True)
            if number:
                Image.new("RGB", (224, 224), (number, 0, 255 - number)).save(path)
            else:
                Image.fromarray(archives.pixels(number, 300, 260, 3)).save(path, compress_level=0)
    return tmp_path / "sets"


def test_imagenet50_is_scaled_and_cut_as_torchvision_does(imagenet50):
    from PIL import Image

    from rbtools.models.torchvision_import import torchvision

    transforms = torchvision.transforms
    cut = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224)])
    found = datasets.load("imagenet50", "test", imagenet50)
    assert tuple(found.images.shape) == (50, 3, 224, 224) and found.labels.tolist() == list(range(50))
    odd = Image.open(imagenet50 / "imagenet50/val/n00/1.png")
    for image, expected in ((0, cut(odd)), (1, Image.open(imagenet50 / "imagenet50/val/n01/1.png"))):
        assert np.array_equal(found.images[image].permute(1, 2, 0).numpy(), np.asarray(expected))


def test_imagenet50_is_described_by_what_is_there(imagenet50):
    about = datasets.describe("imagenet50", imagenet50)
    assert about.sizes == {"train": 50, "test": 50} and about.class_names[:2] == ["n00", "n01"]
    shutil.rmtree(imagenet50 / "imagenet50/val/n49")
    assert "lacks n49" in error_of(datasets.describe, "imagenet50", imagenet50)
    shutil.rmtree(imagenet50 / "imagenet50/train/n49")
    assert "has 49 class folders" in error_of(datasets.load, "imagenet50", "test", imagenet50)


@pytest.fixture(params=["cifar10-c", "cifar100-c"])
def corruptions(request, tmp_path, monkeypatch):
    """(name, data folder, corruption -> (images, labels))"""
    name = request.param
    cls, folder = datasets.DATASETS.load(name), tmp_path / "sets"
    classes = len(cls.class_names)
    made = archives.corrupted(folder, FOLDERS[name], classes=classes)
    monkeypatch.setattr(cls, "sizes", {"test": 3})
    list_sums(monkeypatch, name, folder)
    return name, folder, made


def test_a_corruption_and_severity_are_read_back_byte_for_byte(corruptions):
    name, folder, made = corruptions
    for corruption in ("fog", "speckle_noise"):
        images, labels = made[corruption]
        check(datasets.load(f"{name}:{corruption}", "test", folder), images, labels)
        for severity in range(1, 6):
            part = slice(3 * (severity - 1), 3 * severity)
            full = f"{name}:{corruption}.{severity}"
            check(datasets.load(full, "test", folder), images[part], labels[part])
            assert datasets.describe(full).sizes == {"test": 3}
    assert datasets.describe(f"{name}:fog").sizes == {"test": 15}
    assert "'fogg' is not a corruption. Did you mean 'fog'" in error_of(datasets.describe, f"{name}:fogg.3")
    assert "'6' is not a severity. Severities are 1 to 5." in error_of(datasets.describe, f"{name}:fog.6")


def test_all_corruptions_are_the_fifteen_of_the_benchmark(corruptions, monkeypatch):
    name, folder, made = corruptions
    extra = "gaussian_blur saturate spatter speckle_noise".split()
    benchmark = [made[one] for one in sorted(made) if one not in extra]
    assert len(benchmark) == 15 and datasets.describe(name).sizes == {"test": 225}
    images = np.concatenate([images for images, _ in benchmark])
    whole = datasets.load(name, "test", folder)
    check(whole, images, [one for _, labels in benchmark for one in labels])
    monkeypatch.setenv("RB_IMAGE_MEMORY", "1K")
    streamed = datasets.load(name, "test", folder).images
    ids = torch.tensor([224, 0, 17, 17, 100])
    assert not isinstance(streamed, torch.Tensor) and torch.equal(streamed[ids], whole.images[ids])


BOTH = ("crop", "flip")
OFFICIAL = {  # as published: shape, classes, sizes
    "mnist": ((1, 28, 28), 10, {"train": 60_000, "test": 10_000}, ()),
    "svhn": ((3, 32, 32), 10, {"train": 73_257, "test": 26_032, "extra": 531_131}, ("crop",)),
    "cifar10": ((3, 32, 32), 10, {"train": 50_000, "test": 10_000}, BOTH),
    "cifar100": ((3, 32, 32), 100, {"train": 50_000, "test": 10_000}, BOTH),
    "cinic10": ((3, 32, 32), 10, dict.fromkeys(("train", "valid", "test"), 90_000), BOTH),
    "tinyimagenet": ((3, 64, 64), 200, {"train": 100_000, "test": 10_000}, BOTH),
    "imagenet50": ((3, 224, 224), 50, {"train": 64_000, "test": 2_500}, BOTH),
    "imagenet16-120": ((3, 16, 16), 120, {"train": 151_700, "test": 6_000}, BOTH),
    "cifar10-c": ((3, 32, 32), 10, {"test": 750_000}, BOTH),
    "cifar100-c:fog.1": ((3, 32, 32), 100, {"test": 10_000}, BOTH),
}


@pytest.mark.parametrize("name", OFFICIAL)
def test_description_needs_no_files(name):
    about = datasets.describe(name)
    shape, classes, sizes, augment = OFFICIAL[name]
    assert (about.shape, about.classes, about.sizes, about.augment) == (shape, classes, sizes, augment)
    assert len(about.class_names) == len(set(about.class_names)) == classes
    assert about.mean is not None and len(about.mean) == len(about.std or ()) == shape[0]


@pytest.mark.parametrize("name", [*NAMES, "imagenet50", "cifar10-c:fog.3"])
def test_missing_files_are_explained(name, tmp_path):
    message = error_of(fingerprint, name, "test", tmp_path / "nowhere")
    assert f"The data set {name} was not found. Expected " in message
    assert f"looked in {tmp_path / 'nowhere'}" in message and "--data-dir (or RB_DATA)" in message
    assert ("--download to get http" in message) is (name not in ("imagenet50", "imagenet16-120"))


def test_a_missing_batch_is_named(make):
    folder, _ = make("cifar10")
    (folder / "cifar-10-batches-py/data_batch_4").unlink()
    message = error_of(datasets.load, "cifar10", "train", folder)
    assert f"{folder / 'cifar-10-batches-py'} lacks data_batch_4 of the data set cifar10." in message
    assert len(datasets.load("cifar10", "test", folder)) == 4


VICTIMS = {
    "cifar10": "cifar-10-batches-py/test_batch",
    "cifar100": "cifar-100-python/test",
    "imagenet16-120": "ImageNet16/val_data",
    "mnist": "MNIST/raw/t10k-images-idx3-ubyte",
    "svhn": "test_32x32.mat",
    "cinic10": "CINIC-10/test/cat/n0006.png",
    "tinyimagenet": "tiny-imagenet-200/val/images/val_3.JPEG",
}
HTML = b"\n<!DOCTYPE html>\n<html><body>Please log in</body></html>"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("damage", ["empty", "html", "cut", "noise"])
def test_damaged_file_is_named(make, name, damage):
    folder, _ = make(name)
    victim = folder / VICTIMS[name]
    data = victim.read_bytes()
    harms = {"empty": b"", "html": HTML, "cut": data[: len(data) // 2], "noise": b"\x93abc"}
    victim.write_bytes(harms[damage])
    message = error_of(datasets.load, name, "test", folder)
    assert str(victim) in message
    if name not in ("cinic10", "tinyimagenet"):  # Pillow checks single images
        expected = {"empty": "is empty.", "html": "is an HTML page that was saved as data."}
        assert expected.get(damage, "truncated, damaged or not this kind of file") in message


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "imagenet16-120", "svhn"])
def test_a_file_with_another_checksum_is_refused_unread(make, name, tmp_path, monkeypatch):
    folder, _ = make(name)
    victim = folder / VICTIMS[name]
    expected = archives.md5(victim)
    data = bytearray(victim.read_bytes())
    data[-200] ^= 1
    victim.write_bytes(data)
    monkeypatch.setattr("scipy.io.loadmat", lambda *args, **options: pytest.fail("scipy opens it"))
    for message in (error_of(call, name, "test", folder) for call in (fingerprint, datasets.load)):
        assert f"The file {victim} cannot be read (its MD5 is {archives.md5(victim)})" in message
        assert f"with the MD5 {expected}" in message
    if name == "cifar10":  # a pickle that would run a command
        victim.write_bytes(f"cposix\nsystem\n(S'touch {tmp_path}/ran'\ntR.".encode())
        assert "cannot be read (its MD5 is" in error_of(datasets.load, name, "test", folder)
        assert not (tmp_path / "ran").exists()


DAMAGES = {
    "cut": (lambda data: data[:-50], "mmap length is greater than file size"),
    "html": (lambda data: HTML, "HTML page"),
    "empty": (lambda data: b"", "is empty"),
    "short": (lambda data: archives.npy(np.zeros((9, 32, 32, 3), np.uint8)), "it holds uint8 (9, 32, 32, 3)"),
    "objects": (lambda data: archives.npy(np.array([{}], object)), "Python objects in dtype"),
    "floats": (lambda data: archives.npy(np.zeros((15, 32, 32, 3), np.float32)), "it holds float32"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_array_is_named(corruptions, damage):
    name, folder, _ = corruptions
    victim = folder / FOLDERS[name] / "fog.npy"
    harm, reason = DAMAGES[damage]
    data = victim.read_bytes()
    victim.write_bytes(harm(data))
    message = error_of(datasets.load, f"{name}:fog.3", "test", folder)
    assert str(victim) in message and reason in message
    victim.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))  # a bit that only the checksum shows
    message = error_of(fingerprint, f"{name}:fog.3", "test", folder)
    assert str(victim) in message and archives.md5(victim) in message
    fingerprint(f"{name}:snow.3", "test", folder)


def test_another_number_of_images_is_refused(make, monkeypatch):
    folder, _ = make("mnist")
    monkeypatch.setattr(digits.Mnist, "sizes", {"train": 60_000, "test": 10_000})
    assert "contain 5 images of 1x28x28" in error_of(datasets.load, "mnist", "test", folder)
    folder, _ = make("cinic10")
    (folder / "CINIC-10/test/cat/n0006.png").unlink()
    assert "has 19 images" in error_of(fingerprint, "cinic10", "test", folder)
