"""imagenet: folders of wnids, with the indices of all 1,000 classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rbtools import datasets
from rbtools.datasets.photographs import facts
from rbtools.datasets.streaming import Streamed
from tests.datasets.archives import error_of
from tests.fingerprints import fingerprint

# The class indices of the first validation images.
INDICES = (65, 970, 230, 809, 516)


def image(seed: int, size: tuple[int, int]) -> Image.Image:
    width, height = size
    y, x = np.mgrid[:height, :width]
    wave = np.stack([np.sin(x / (9 + seed)), np.cos(y / 11), np.sin((x + y) / (7 + seed))], -1)
    return Image.fromarray((127 + 120 * wave).astype(np.uint8))


@pytest.fixture
def flat() -> Path:
    """Five validation images of different sizes without class folders."""
    place = Path("data/imagenet/val")
    place.mkdir(parents=True)
    for number, size in enumerate([(300, 260), (224, 224), (260, 400), (500, 333), (90, 60)], 1):
        image(number, size).save(place / f"ILSVRC2012_val_{number:08}.JPEG")
    return place


def in_folders(flat: Path) -> Path:
    for number, index in enumerate(INDICES, 1):
        name = f"ILSVRC2012_val_{number:08}.JPEG"
        folder = flat / facts().wnids[index]
        folder.mkdir(exist_ok=True)
        (flat / name).rename(folder / name)
    return flat


def test_the_facts_are_those_of_ilsvrc2012() -> None:
    assert len(facts().wnids) == 1000 and facts().wnids == sorted(facts().wnids)
    assert len(set(facts().robustbench)) == 5000


def test_a_folder_of_some_classes_has_the_indices_of_all(flat: Path) -> None:
    in_folders(flat)
    data, about = datasets.load("imagenet", "test", "data"), datasets.describe("imagenet", "data")
    assert isinstance(data.images, Streamed) and data.images.shape == (5, 3, 224, 224)
    assert sorted(data.labels.tolist()) == sorted(INDICES) and data.classes == about.classes == 1000
    assert about.sizes["test"] == 5 and about.shape == (3, 224, 224)
    assert "has 5 of the 1,000 classes" in about.notes[0]
    assert "robustbench" not in about.sizes
    assert "none of the images of the split" in error_of(datasets.load, "imagenet", "robustbench", "data")
    path = next(flat.glob("*/*_00000005.JPEG"))
    path.rename(path.with_name(f"ILSVRC2012_val_{facts().robustbench[0]:08}.JPEG"))
    subset = datasets.load("imagenet", "robustbench", "data")
    assert subset.labels.tolist() == [INDICES[4]]
    assert datasets.describe("imagenet", "data").sizes["robustbench"] == 1
    # The folder itself is found too, and its content decides the fingerprint, not its place.
    again = fingerprint("imagenet", "test", flat)
    assert again == fingerprint("imagenet", "test", "data")
    assert again != fingerprint("imagenet", "test", flat, resize=256, crop=224, interpolation="bicubic")


def test_images_are_scaled_and_cropped_as_torchvision_does_it(flat: Path) -> None:
    in_folders(flat)
    from rbtools.models.torchvision_import import torchvision

    wanted = torchvision.transforms.Compose(
        [torchvision.transforms.Resize(256), torchvision.transforms.CenterCrop(224)]
    )
    data = datasets.load("imagenet", "test", "data")
    for number, path in enumerate(sorted(flat.glob("*/*.JPEG"))):
        expected = np.array(wanted(Image.open(path).convert("RGB")))
        assert torch.equal(data.images[number], torch.from_numpy(expected).permute(2, 0, 1)), path
    assert datasets.describe("imagenet", "data", crop=288).shape == (3, 288, 288)
    usual, same = (datasets.source("imagenet", "data", **way) for way in ({}, {"resize": 256, "crop": 224}))
    assert usual == same and usual.fingerprint("test") == same.fingerprint("test")


def test_other_folders_and_preprocessings_are_refused(flat: Path) -> None:
    assert "imagenet/val has no class folders" in error_of(datasets.load, "imagenet", "test", "data")
    for argument, options in (
        ("crop-288", "--crop 288"),
        ("squash-224", "--resize 224 --squash --crop 224"),
        ("lanczos", "--resize 256 --crop 224"),
    ):
        text = error_of(datasets.load, f"imagenet:{argument}", "test", "data")
        assert f"takes no argument, found 'imagenet:{argument}'" in text and options in text
    assert "Expected imagenet/val/n01440764" in error_of(datasets.load, "imagenet", "train", "data")
    cats = in_folders(flat) / "cats"
    cats.mkdir()
    image(0, (9, 9)).save(cats / "a.png")
    assert "folders cats, which are not wnids" in error_of(datasets.load, "imagenet", "test", "data")
