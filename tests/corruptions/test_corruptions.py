"""Corruptions against the statistics of CIFAR-10-C's generator and OpenCV, and called by themselves."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from rbtools import datasets
from rbtools.corruptions import CORRUPTIONS, base, frost
from rbtools.errors import RbError
from rbtools.rng.draws import Draws
from rbtools.units import SEVERITIES
from tests.networks import images_for
from tests.runner import run

GOLDEN = json.loads((Path(__file__).parent / "data" / "cifar-c-statistics.json").read_text())["severities"]
# Of the corruptions that CIFAR-10-C has.
DETERMINISTIC = [name for name in GOLDEN if not CORRUPTIONS.load(name).random]
RANDOM = [name for name in GOLDEN if name not in DETERMINISTIC]


def draws(start: int, stop: int) -> Draws:
    return Draws(0, "corruption", torch.arange(start, stop))


def formula_images() -> torch.Tensor:
    """The 50 images of the golden file, float32 (50, 3, 32, 32) in [0, 1]."""
    i, h, w, c = np.ogrid[:50, :32, :32, :3]
    waves = 55 * np.sin(0.20 * h * (1 + 0.1 * (i % 5)) + 0.7 * i) + 55 * np.cos(0.31 * w - 0.9 * c + 0.3 * i)
    levels = np.clip(128 + waves + 15 * np.sin(1.7 * h + 2.1 * w + i), 0, 255).astype(np.uint8)
    return torch.tensor(levels).permute(0, 3, 1, 2).contiguous().float() / 255


def corrupt(name: str, images: torch.Tensor, severity: int, **params: object) -> torch.Tensor:
    return CORRUPTIONS.build(name, **params)(images, severity, draws(0, len(images)))


def levels(images: torch.Tensor) -> torch.Tensor:
    return (images.double() * 255).round().long()


@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_statistics_are_those_of_the_cifar_c_generator(name: str, severity: int) -> None:
    images, want = formula_images(), GOLDEN[name][str(severity)]
    change = (levels(corrupt(name, images, severity)) - levels(images)).double()
    assert float(change.abs().mean()) == pytest.approx(want["mean_abs"], rel=0.002)
    assert float(change.square().mean().sqrt()) == pytest.approx(want["rms"], rel=0.002)
    assert change.mean(dim=(0, 2, 3)).tolist() == pytest.approx(want["mean_shift"], rel=0.01)


@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("name", RANDOM)
def test_statistics_of_chance_are_those_of_the_cifar_c_generator(name: str, severity: int) -> None:
    """Within three standard errors (both sides are samples, of three seeds) or 3 % of the change."""
    images, want = formula_images(), GOLDEN[name][str(severity)]
    corruption = CORRUPTIONS.build(name)
    seeds = [Draws(seed, "corruption", torch.arange(len(images))) for seed in range(3)]
    seen = torch.cat([levels(corruption(images, severity, draws)) for draws in seeds])
    change = (seen - levels(images).repeat(3, 1, 1, 1)).double()

    def near(found: torch.Tensor, golden: float, scale: float) -> None:
        error = 3 * float(found.std()) * math.sqrt(1 / want["images"] + 1 / len(found))
        assert float(found.mean()) == pytest.approx(golden, abs=max(error, 0.03 * scale))

    near(change.abs().mean(dim=(1, 2, 3)), want["mean_abs"], want["mean_abs"])
    near(change.square().mean(dim=(1, 2, 3)), want["rms"] ** 2, 2 * want["rms"] ** 2)
    for channel, shift in enumerate(want["mean_shift"]):
        near(change[:, channel].mean(dim=(1, 2)), shift, want["mean_abs"])


@pytest.mark.parametrize("constants", ["cifar", "imagenet"])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (3, 40, 24)])
def test_defocus_blur_is_opencv_s_to_the_pixel(shape: tuple[int, int, int], constants: str) -> None:
    images = levels(images_for(6, shape, seed=1)).float() / 255
    images[:, :, : shape[1] // 2, : shape[2] // 2] = 1  # a flat region, where rounding would show
    known = CORRUPTIONS.load("defocus_blur").severities[constants]
    for severity, (radius, sigma) in enumerate(known, start=1):
        half, taps = (8, 3) if radius <= 8 else (radius, 5)
        x, y = np.meshgrid(np.arange(-half, half + 1), np.arange(-half, half + 1))
        flat = (x**2 + y**2 <= radius**2).astype(np.float32)
        kernel = cv2.GaussianBlur(flat / flat.sum(), ksize=(taps, taps), sigmaX=sigma)
        planes = (levels(images).numpy() / 255.0).reshape(-1, *shape[1:])
        want = [np.uint8(np.clip(cv2.filter2D(plane, -1, kernel), 0, 1) * 255) for plane in planes]
        got = levels(corrupt("defocus_blur", images, severity, constants=constants)).numpy()
        off = np.abs(got.reshape(-1, *shape[1:]) - np.array(want, dtype=int))
        assert off.max() <= 1
        assert (off > 0).mean() < 1e-3


@pytest.mark.parametrize("constants", ["cifar", "imagenet"])
@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 20, 12)])
def test_result_is_on_the_grid_of_grey_levels(name: str, shape: tuple[int, int, int], constants: str) -> None:
    images = images_for(3, shape)
    before = images.clone()
    for severity in SEVERITIES:
        corruption = CORRUPTIONS.build(name, constants=constants)
        if corruption.smallest(corruption.constant(severity, shape[1:])) > min(shape[1:]):
            continue
        result = corrupt(name, images, severity, constants=constants)
        assert result.shape == images.shape and result.dtype == torch.float32
        assert torch.equal(result, levels(result).to(torch.uint8).float() / 255)
    assert torch.equal(images, before)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_result_of_an_image_does_not_depend_on_its_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "CPU_PIECE", 3 * 3 * 32 * 32)
    images = formula_images()[:4]  # a piece and one more
    corruption = CORRUPTIONS.build(name)
    for severity in SEVERITIES:
        together = corruption(images, severity, draws(0, 4))
        apart = [corruption(images[i : i + 1], severity, draws(i, i + 1)) for i in range(4)]
        assert torch.equal(together, torch.cat(apart))


def test_constants_follow_the_image_size() -> None:
    contrast = CORRUPTIONS.build("contrast")
    assert contrast.constant(1, (64, 64)) == contrast.constant(1, (8, 8)) == 0.75
    assert contrast.constant(1, (65, 32)) == contrast.constant(1, (224, 224)) == 0.4
    assert CORRUPTIONS.build("contrast", constants="imagenet").constant(5, (32, 32)) == 0.05


@pytest.mark.parametrize("name", ["gaussian_noise", "frost", "jpeg_compression", "elastic_transform"])
def test_pixels_are_those_of_the_command(name: str, photos: Path) -> None:
    images = datasets.load(f"imagefolder:{photos}", "test").images[:].float() / 255
    words = f"{name} --write copy --dataset imagefolder:{photos} --seed 3 --batch 7 --device cpu"
    assert run("corrupt", words).exit_code == 0
    written = torch.from_numpy(np.load(f"copy/{name}.npy")).permute(0, 3, 1, 2)
    corruption = CORRUPTIONS.build(name)
    kept = images.clone()
    for severity, levels in enumerate(written.split(len(images)), start=1):
        assert torch.equal(corruption(images, severity=severity, seed=3), levels.float() / 255)
    assert torch.equal(images, kept)
    some = torch.tensor([8, 3, 5])
    alone = corruption(images[some], 5, seed=3, examples=some)
    assert torch.equal(alone, written[-len(images) :][some].float() / 255)


def test_frost_takes_the_photographs_if_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.full((2, 3, 32, 32), 0.5)
    made, generated = CORRUPTIONS.build("frost"), CORRUPTIONS.build("frost", textures="generated")(images, 1)
    monkeypatch.setattr(frost, "_files", list)
    assert made.resolved().textures == "generated" and torch.equal(made(images, 1), generated)
    with pytest.raises(RbError, match=r"not installed\. Use --textures generated, or run pip install"):
        CORRUPTIONS.build("frost", textures="imagecorruptions")(images, 1)
    pictures = tuple(torch.full((3, 60, 60), 20 * number, dtype=torch.uint8) for number in range(6))
    monkeypatch.setattr(frost, "_files", lambda: [Path("frost1.png")])
    monkeypatch.setattr(frost, "_photographs", lambda: pictures)
    seen = CORRUPTIONS.build("frost")(images, 1)
    assert all(len(image.unique()) == 1 for image in seen)  # of one picture each
    assert not torch.equal(seen, generated)


IMAGES = torch.full((2, 3, 16, 16), 0.5)


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (IMAGES, {"severity": 6}, r"The severity of fog is 6\. Choose from: 1, 2, 3, 4, 5\."),
        (IMAGES * 255, {}, r"values from 127\.5 to 127\.5\. Expected values in \[0, 1\]"),
        (IMAGES.numpy(), {}, r"images are of type ndarray"),
        (IMAGES, {"examples": torch.arange(3)}, r"shape \(3,\) .* Expected 2 whole numbers"),
    ],
)
def test_wrong_input_is_one_sentence(images: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RbError, match=message):
        CORRUPTIONS.build("fog")(images, **{"severity": 1, **options})
