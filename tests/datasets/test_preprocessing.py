"""--resize, --crop, --interpolation, --squash and --transform, compared with Pillow, torchvision and timm."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import rbtools
from rbtools import datasets
from rbtools.datasets.preprocessing import Preprocessing, of_options, parse
from rbtools.errors import RbError
from rbtools.models import build
from rbtools.models.torchvision_import import torchvision
from tests.datasets.archives import error_of
from tests.fingerprints import fingerprint
from tests.runner import run

BICUBIC = torchvision.transforms.InterpolationMode.BICUBIC
SIZES = [(30, 47), (64, 20), (90, 90), (31, 32), (200, 17), (5, 9)]
Photos = list[Image.Image]
transforms = torchvision.transforms


@pytest.fixture
def photos() -> Photos:
    """Photos of mixed sizes in `photos` and `photos.parquet`, in colour and grey, as PNG and JPEG."""
    rng, kept, encoded = np.random.default_rng(0), [], []
    for number, (width, height) in enumerate(SIZES * 2):
        image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        image = image.convert("L") if number % 3 == 2 else image
        file = io.BytesIO()
        image.save(file, "JPEG" if number % 2 else "PNG")
        path = Path("photos/test", str(number // 6), f"{number:02}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.getvalue())
        encoded.append({"image": file.getvalue(), "label": number // 6})
        kept.append(Image.open(file).convert("RGB"))
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(encoded), "photos.parquet")
    return kept


def cases() -> list[tuple[dict[str, Any], Callable[[Image.Image], Any]]]:
    from timm.data import create_transform, resolve_data_config

    from rbtools.zoo.libraries import import_timm

    def as_timm(name: str) -> Any:
        config = resolve_data_config(pretrained_cfg=import_timm().get_pretrained_cfg(name).to_dict())
        return create_transform(**{**config, "mean": (0, 0, 0), "std": (1, 1, 1)})

    def as_torchvision(name: str) -> Any:
        preset = torchvision.models.get_weight(name).transforms()
        preset.mean, preset.std = [0.0] * 3, [1.0] * 3
        return preset

    resize, crop = transforms.Resize, transforms.CenterCrop
    of_timm = ("resnet18.a1_in1k", "convnext_tiny.fb_in22k_ft_in1k_384")
    of_torchvision = ("ResNet18_Weights.IMAGENET1K_V1", "RegNet_Y_16GF_Weights.IMAGENET1K_SWAG_E2E_V1")
    return [
        ({"resize": 40, "crop": 32}, transforms.Compose([resize(40), crop(32)])),
        (
            {"resize": 33, "crop": 32, "interpolation": "bicubic"},
            transforms.Compose([resize(33, BICUBIC), crop(32)]),
        ),
        ({"resize": 24, "squash": True}, resize((24, 24))),
        ({"crop": 48}, crop(48)),
        *(({"transform": f"timm:{name}"}, as_timm(name)) for name in of_timm),
        *(({"transform": f"torchvision:{name}"}, as_torchvision(name)) for name in of_torchvision),
    ]


def test_photos_of_mixed_sizes_are_scaled_as_torchvision_and_timm_do_it(photos: Photos) -> None:
    for options, transform in cases():
        expected = [transform(photo) for photo in photos]
        tensors = [one if torch.is_tensor(one) else transforms.ToTensor()(one) for one in expected]
        for name in ("imagefolder:photos", "parquet:photos.parquet:rgb"):
            data, about = datasets.load(name, "test", **options), datasets.describe(name, **options)
            assert data.images.shape[1:] == about.shape == tensors[0].shape
            assert torch.equal(data.images[:].float() / 255, torch.stack(tensors)), (name, options)


def test_arrays_are_scaled_like_photos() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 20, 30, 3), dtype=np.uint8)
    np.savez("x.npz", images=pixels, labels=np.arange(4))
    data = datasets.load("npz:x.npz", "test", resize=40, crop=32, interpolation="bicubic")
    how = transforms.Compose([transforms.Resize(40, BICUBIC), transforms.CenterCrop(32)])
    expected = np.stack([np.asarray(how(Image.fromarray(one))) for one in pixels])
    assert np.array_equal(data.images[:].permute(0, 2, 3, 1).numpy(), expected)
    grey = datasets.load("digits:classes=3/8", "test", resize=16, squash=True)
    assert grey.images[:2].shape == (2, 1, 16, 16)


def test_every_setting_is_part_of_the_fingerprint(photos: Photos) -> None:
    np.savez("x.npz", images=np.zeros((4, 20, 30), np.uint8), labels=np.arange(4))
    ways: list[dict[str, Any]] = [
        {"resize": 40, "crop": 32},
        {"resize": 41, "crop": 32},
        {"resize": 40, "crop": 31},
        {"resize": 40, "crop": 32, "interpolation": "bicubic"},
        {"resize": 40, "crop": 32, "squash": True},
        {"crop": 32},
    ]
    for name in ("imagefolder:photos", "parquet:photos.parquet", "npz:x.npz", "digits:classes=3/8"):
        found = [fingerprint(name, "test", **way) for way in (*ways, {})]
        assert len(set(found)) == len(found)
        assert found[0] == fingerprint(name, "test", preprocessing="bilinear-40-32")


def test_a_text_is_read_as_it_is_written() -> None:
    for way in (Preprocessing(224, 256), Preprocessing(9, 9, "bicubic", True), Preprocessing(288)):
        assert parse(str(way)) == way
    assert parse("squash-224") == parse("squash-bilinear-224-224") == of_options(resize=224, squash=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "add --resize 256 --crop 224"),
        ({"resize": 32}, "Add --crop"),
        ({"resize": 32, "crop": 33}, "not larger than the scaled side"),
        ({"crop": 32, "squash": True}, "Add --resize"),
        ({"crop": 32, "interpolation": "bicubic"}, "Add --resize"),
        ({"resize": 32, "crop": 32, "interpolation": "lanczos"}, "bilinear, bicubic"),
        ({"crop": 0}, "from 1 to 4096"),
        ({"crop": 32, "transform": "timm:resnet18"}, "Leave it out"),
        ({"transform": "ResNet18_Weights"}, "Expected torchvision:WEIGHTS"),
        ({"transform": "torchvision:ResNet18_Weights.IMAGENET1K_V9"}, "Did you mean 'ResNet18_Weights"),
        ({"transform": "timm:resnet18.nothing"}, "Unknown timm model 'resnet18.nothing'"),
        ({"preprocessing": "lanczos-256-224"}, "not a valid preprocessing"),
    ],
)
def test_options_that_say_no_size_are_refused(photos: Photos, options: dict[str, Any], message: str) -> None:
    text = error_of(datasets.load, "imagefolder:photos", "test", **options)
    assert message in text and "mogrify" not in text


def test_an_image_that_would_be_huge_is_refused() -> None:
    for name, size in (("a", (4000, 1)), ("b", (9, 9))):
        Path("thin", name).mkdir(parents=True)
        Image.new("L", size).save(Path("thin", name, "1.png"))
    data = datasets.load("imagefolder:thin", "test", resize=2048, crop=8)
    with pytest.raises(RbError, match=r"cannot be read \(it is 4000x1 and would become 8192000x2048"):
        data.images[:]


def test_a_record_keeps_how_its_photos_are_scaled(photos: Photos) -> None:
    Path("photos/train").symlink_to("test")
    arch = run("arch", "--index 13714 --cells 1 --channels 4").stdout
    words = "--method erm --epochs 1 --val 0 --batch-size 4 --dataset"
    trained = run("train", f"{words} imagefolder:photos --resize 20 --crop 16", arch).stdout
    (record,) = map(json.loads, run("attack", "fgsm --eps 1", trained).stdout.splitlines())
    assert record["preprocessing"] == "bilinear-20-16"
    of_images = [entry["preprocessing"] for entry in record["evals"] if "split" in entry]
    assert of_images == ["bilinear-20-16"] * 2
    (judged,) = map(json.loads, run("verify", "", [record]).stdout.splitlines())
    assert {judged["verify"]["entries"][name]["verdict"] for name in ("acc", "fgsm.1")} == {"match"}
    other = run("attack", "none --resize 18 --crop 16", [record])
    assert "preprocessing 'bilinear-20-16' there and 'bilinear-18-16' here" in other.stderr
    # On another data set it has no meaning.
    assert "preprocessing" not in run("train", f"{words} digits:classes=3/8 --batch-size 200", trained).stdout


def test_a_transform_normalises_where_nothing_else_does(photos: Photos) -> None:
    network = build({"space": "zoo", "name": "resnet18"}, classes=2, shape=(3, 32, 32))
    torch.save(network.state_dict(), "model.pt")
    words = "--from-checkpoint model.pt --arch resnet18:stem=cifar --dataset imagefolder:photos"
    words += " --transform timm:resnet18.a1_in1k"
    for more, normalize in (
        ("", [[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]),
        (" --normalize none", "none"),
    ):
        done = run("arch", words + more)
        (record,) = map(json.loads, done.stdout.splitlines())
        assert record["arch"]["normalize"] == normalize and record["preprocessing"] == "bicubic-235-224"
        assert "is --resize 235 --crop 224 --interpolation bicubic --normalize '0.485" in done.stderr


def test_functions_of_python_take_the_same_options(photos: Photos) -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 2))
    result = rbtools.evaluate(network, "imagefolder:photos", "acc", resize=20, crop=16)
    data = datasets.load("imagefolder:photos", "test", resize=20, crop=16)
    right = network(data.images[:].float() / 255).argmax(1) == data.labels
    assert (result.n, round(12 * result.value)) == (12, int(right.sum()))
    Path("photos/train").symlink_to("test")
    fit = rbtools.fit(network, "imagefolder:photos", epochs=1, batch_size=4, resize=20, crop=16, val=0)
    assert fit.epochs == 1
    for wrong, options in ((data, {"crop": 8}), ("digits", {"croop": 8})):
        with pytest.raises(RbError, match=r"given by name|Did you mean 'crop'"):
            rbtools.evaluate(network, wrong, "acc", **options)
