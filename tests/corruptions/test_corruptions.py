"""Corruptions against the statistics of CIFAR-10-C's generator, against OpenCV, and by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from rbtools.corruptions import CORRUPTIONS, base
from rbtools.corruptions.defocus_blur import by_fft, disk, mirrored
from rbtools.corruptions.imaging import by_taps
from rbtools.rng.draws import Draws
from rbtools.units import SEVERITIES

GOLDEN = json.loads((Path(__file__).parent / "data" / "cifar-c-statistics.json").read_text())["severities"]
# Of the corruptions that CIFAR-10-C has.
DETERMINISTIC = [name for name in GOLDEN if not CORRUPTIONS.load(name).random]
RANDOM = [name for name in GOLDEN if name not in DETERMINISTIC]
# Corruptions whose change of the images does not grow with the severity, by their published constants: the
# runs of severities in which it grows.
RUNS: dict[tuple[str, str], list[tuple[int, ...]]] = {
    # its 4th disk does not remove one frequency of these images
    ("defocus_blur", "cifar"): [(1, 2, 3, 4), (1, 2, 3, 5)],
    ("glass_blur", "cifar"): [(3, 1, 5, 4), (3, 2, 5)],
    ("glass_blur", "imagenet"): [(2, 1, 4, 5, 3)],
    ("frost", "cifar"): [(1, 2, 3), (1, 5), (1, 4)],
    ("frost", "imagenet"): [(1, 3), (1, 5)],
    ("elastic_transform", "cifar"): [(5, 4, 3, 2, 1)],
    ("elastic_transform", "imagenet"): [(1, 2), (3, 4, 5), (3, 1)],
    ("spatter", "cifar"): [(1, 2, 3), (4, 5)],
    ("saturate", "cifar"): [(1, 2), (3, 4, 5)],
    ("saturate", "imagenet"): [(1, 2), (3, 4, 5)],
}


def draws(start: int, stop: int) -> Draws:
    return Draws(0, "corruption", torch.arange(start, stop))


def formula_images() -> torch.Tensor:
    """The 50 images of the golden file, float32 (50, 3, 32, 32) in [0, 1]."""
    i, h, w, c = np.ogrid[:50, :32, :32, :3]
    waves = 55 * np.sin(0.20 * h * (1 + 0.1 * (i % 5)) + 0.7 * i) + 55 * np.cos(0.31 * w - 0.9 * c + 0.3 * i)
    levels = np.clip(128 + waves + 15 * np.sin(1.7 * h + 2.1 * w + i), 0, 255).astype(np.uint8)
    return torch.tensor(levels).permute(0, 3, 1, 2).contiguous().float() / 255


def digits_like(count: int = 12) -> torch.Tensor:
    """Grey images of 8x8 with 17 levels, black at the rim and, in one, all white: (count, 1, 8, 8)."""
    levels = torch.randint(0, 17, (count, 1, 8, 8), generator=torch.Generator().manual_seed(0)).float()
    levels[:, :, :, 0] = 0
    levels[0] = 16
    return (levels * 255 / 16).round() / 255


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
    if name == "frost":
        pytest.importorskip("imagecorruptions")  # the published archive has the photographs
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
def test_noise_has_the_expected_change_in_closed_form(constants: str) -> None:
    images = formula_images()
    clean = levels(images).flatten()
    grid = torch.arange(256, dtype=torch.float64)
    for severity, c in enumerate(CORRUPTIONS.load("gaussian_noise").severities[constants], start=1):
        # P(floor(clip(k + noise, 0, 255)) = j), with all that is clipped in 0 and 255
        edges = torch.special.ndtr((torch.arange(257)[None, :] - grid[:, None]) / (255 * c))
        edges[:, 0], edges[:, 256] = 0, 1
        distance = (grid[None, :] - grid[:, None]).abs()
        mean = (edges.diff(dim=1) * distance).sum(dim=1)[clean]
        square = (edges.diff(dim=1) * distance**2).sum(dim=1)[clean]
        error = float((square - mean**2).sum().sqrt()) / len(clean)
        change = (
            levels(corrupt("gaussian_noise", images, severity, constants=constants)) - levels(images)
        ).abs()
        assert float(change.double().mean()) == pytest.approx(float(mean.mean()), abs=4 * error)


@pytest.mark.parametrize("constants", ["cifar", "imagenet"])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (3, 40, 24)])
def test_defocus_blur_is_opencv_s_to_the_pixel(shape: tuple[int, int, int], constants: str) -> None:
    cv2 = pytest.importorskip("cv2")
    images = (
        digits_like() if shape[1] == 8 else torch.rand(6, *shape, generator=torch.Generator().manual_seed(1))
    )
    images = levels(images).float() / 255
    images[:, :, : shape[1] // 2, : shape[2] // 2] = 1  # a flat region, where rounding would show
    for severity, (radius, sigma) in enumerate(
        CORRUPTIONS.load("defocus_blur").severities[constants], start=1
    ):
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


def test_brightness_by_hand() -> None:
    pixel = torch.tensor([100.0, 50.0, 0.0]).view(1, 3, 1, 1) / 255
    # V = 100 rises by .3 * 255 to 176.5; the others keep their share of it: 88.25 and 0.
    assert levels(corrupt("brightness", pixel, 5)).flatten().tolist() == [176, 88, 0]
    grey = torch.tensor([[0.0, 100, 200, 255]]).view(1, 1, 2, 2) / 255
    assert levels(corrupt("brightness", grey, 5)).flatten().tolist() == [76, 176, 255, 255]


def test_contrast_by_hand() -> None:
    image = torch.tensor([[0.0, 100.0], [20.0, 200.0]]).view(1, 1, 2, 2) / 255
    # mean 80; severity 2 halves the distances: 40, 90, 50, 140.
    assert levels(corrupt("contrast", image, 2)).flatten().tolist() == pytest.approx([40, 90, 50, 140], abs=1)
    # severity 5 keeps .15 of them: 68, 83, 71, 98.
    assert levels(corrupt("contrast", image, 5)).flatten().tolist() == pytest.approx([68, 83, 71, 98], abs=1)


@pytest.mark.parametrize("level", [0, 1, 17, 128, 254, 255])
@pytest.mark.parametrize("name", ["contrast", "defocus_blur"])
def test_a_flat_image_stays_as_it_is(name: str, level: int) -> None:
    flat = torch.full((1, 3, 16, 16), level / 255)
    for severity in SEVERITIES:
        assert torch.equal(levels(corrupt(name, flat, severity)), levels(flat))


def test_disk_weights() -> None:
    centre = torch.tensor(disk(1.5, 0.1))
    assert_close(centre, torch.full((3, 3), 1 / 9))  # all of the 3x3 neighbourhood, hardly blurred
    for constants in CORRUPTIONS.load("defocus_blur").severities.values():
        for radius, sigma in constants:
            kernel = torch.tensor(disk(radius, sigma), dtype=torch.float64)
            assert torch.equal(kernel, kernel.T) or float((kernel - kernel.T).abs().max()) < 1e-8
            assert_close(kernel, kernel.flip(0, 1))
            # The reference's grid ends where these two disks end: a defect that is kept.
            want = {8: 1.01298, 10: 1.01079}.get(radius, 1.0)
            assert float(kernel.sum()) == pytest.approx(want, abs=1e-5)


def test_mirrored_goes_back_and_forth_over_small_images() -> None:
    assert mirrored(3, 5) == [1, 0, 1, 2, 1, 0, 1, 2, 1, 0, 1, 2, 1]
    assert mirrored(4, 2) == [2, 1, 0, 1, 2, 3, 2, 1]
    assert mirrored(1, 2) == [0, 0, 0, 0, 0]


@pytest.mark.parametrize("size", [3, 11, 21])
def test_both_ways_of_filtering_are_the_correlation(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    kernel = torch.rand(size, size, generator=generator, dtype=torch.float64)  # not symmetric: shows a flip
    padded = torch.rand(2, 3, size + 4, size + 6, generator=generator, dtype=torch.float64)
    want = torch.nn.functional.conv2d(padded.flatten(0, 1).unsqueeze(1), kernel[None, None]).view(2, 3, 5, 7)
    rows = tuple(tuple(row) for row in kernel.tolist())
    assert_close(by_taps(padded, rows), want, rtol=0, atol=1e-12)
    assert_close(by_fft(padded, rows), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("constants", ["cifar", "imagenet"])
@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 20, 12)])
def test_result_is_on_the_grid_of_grey_levels(name: str, shape: tuple[int, int, int], constants: str) -> None:
    images = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
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


@pytest.mark.parametrize("constants", ["cifar", "imagenet"])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_change_grows_with_severity(name: str, constants: str) -> None:
    images = formula_images()
    change = {
        severity: float((corrupt(name, images, severity, constants=constants) - images).abs().mean())
        for severity in SEVERITIES
    }
    for run in RUNS.get((name, constants), [SEVERITIES]):
        found = [change[severity] for severity in run]
        assert found == sorted(found)


def test_noise_differs_between_severities_and_examples() -> None:
    images = torch.full((2, 1, 16, 16), 0.5)
    mild, severe = (corrupt("gaussian_noise", images, s) - 0.5 for s in (1, 5))
    for one, other in [(mild[0], severe[0]), (mild[0], mild[1])]:
        assert abs(float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1])) < 0.25


def test_constants_follow_the_image_size() -> None:
    contrast = CORRUPTIONS.build("contrast")
    assert contrast.constant(1, (64, 64)) == contrast.constant(1, (8, 8)) == 0.75
    assert contrast.constant(1, (65, 32)) == contrast.constant(1, (224, 224)) == 0.4
    assert CORRUPTIONS.build("contrast", constants="imagenet").constant(5, (32, 32)) == 0.05
