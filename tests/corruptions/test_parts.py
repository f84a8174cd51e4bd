"""What corruptions are made of, each part against a plain loop, scipy, Pillow, OpenCV or the formula."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage, stats

from rbtools.corruptions import CORRUPTIONS, frost, imaging
from rbtools.corruptions.elastic_transform import affine_places
from rbtools.corruptions.glass_blur import sources
from rbtools.corruptions.jpeg_blocks import compressed_blocks
from rbtools.corruptions.jpeg_compression import compressed_files
from rbtools.corruptions.pixelate import resized
from rbtools.corruptions.shot_noise import poisson
from rbtools.corruptions.spatter import distances, edges, equalised
from rbtools.errors import RbError
from rbtools.rng.draws import Draws


def draws(count: int, stream: str = "parts") -> Draws:
    return Draws(0, stream, torch.arange(count))


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Smooth noise of grey levels, uint8 (H, W, 3)."""
    noise = np.random.default_rng(seed).normal(size=(height, width, 3))
    smooth = ndimage.gaussian_filter(noise, (1.5, 1.5, 0))
    return np.uint8(np.clip(128 + 200 * smooth, 0, 255))


def planes(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.copy()).permute(2, 0, 1)[None]


@pytest.mark.parametrize(("size", "delta"), [((12, 9), 1), ((14, 11), 2), ((16, 20), 4)])
def test_glass_copies_pixel_by_pixel_from_the_lower_right(size: tuple[int, int], delta: int) -> None:
    height, width = size
    offsets = draws(5).integers(2 * delta, (2, height, width)) - delta
    found = sources(size, delta, draws(5), 0)
    for example in range(5):
        want = np.arange(height * width).reshape(size)
        for h in range(height - delta, delta, -1):
            for w in range(width - delta, delta, -1):
                down, right = offsets[example, :, h, w].tolist()
                want[h, w] = want[h + down, w + right]  # the reference's exchange only copies
        assert found[example].tolist() == want.flatten().tolist()


@pytest.mark.parametrize("constant", [3, 60, 500])
def test_shot_noise_counts_have_the_poisson_distribution(constant: int) -> None:
    for level in (0, 1, 40, 255):
        mean = level * constant / 255
        bits = torch.linspace(0, 2**32 - 1, 20_001, dtype=torch.float64).long().view(1, -1)
        counts = poisson(torch.full_like(bits, level), constant, bits)
        want = stats.poisson.ppf((bits.double() + 0.5) / 2**32, mean)
        assert counts.flatten().tolist() == want.flatten().clip(min=0).tolist()


@pytest.mark.parametrize("size", [(32, 32), (64, 48), (21, 33), (7, 5)])
def test_pixelate_is_pillow_s_box_filter(size: tuple[int, int]) -> None:
    image = picture(*size)
    for share in (0.95, 0.85, 0.6, 0.3):
        small = int(size[0] * share), int(size[1] * share)
        want = Image.fromarray(image).resize(small[::-1], Image.Resampling.BOX)
        found = resized(planes(image).float(), small)
        assert np.array_equal(found[0].permute(1, 2, 0).numpy(), np.asarray(want))
        back = want.resize(size[::-1], Image.Resampling.BOX)
        assert np.array_equal(resized(found, size)[0].permute(1, 2, 0).numpy(), np.asarray(back))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(32, 32), (33, 18), (7, 5), (6, 40), (1, 1)])
def test_jpeg_blocks_are_those_of_files(size: tuple[int, int], channels: int) -> None:
    noise = torch.randint(256, (2, channels, *size), generator=torch.Generator().manual_seed(0)).float()
    smooth = torch.from_numpy(picture(*size)).permute(2, 0, 1)[None, :channels].float()
    levels = torch.cat([noise, smooth, noise.gt(127) * 255.0])
    for quality in (1, 7, 25, 40, 58, 80, 95, 100):
        assert torch.equal(compressed_blocks(levels, quality), compressed_files(levels, quality))


def test_affine_map_is_opencv_s() -> None:
    image = picture(32, 32).astype(np.float32)
    down, right = affine_places(draws(4), (32, 32), 2.5)
    shifts = draws(4).uniform((3, 2)).double().mul(2).sub(1).mul(2.5).numpy()
    corners = np.array([[26, 26], [26, 6], [6, 6]], dtype=np.float32)
    moved = imaging.sampled(planes(image).double().expand(4, -1, -1, -1), down, right, edge_twice=False)
    for example in range(4):
        matrix = cv2.getAffineTransform(corners, corners + shifts[example].astype(np.float32))
        want = cv2.warpAffine(image, matrix, (32, 32), borderMode=cv2.BORDER_REFLECT_101)
        off = np.abs(moved[example].permute(1, 2, 0).numpy() - want)
        assert off.mean() < 0.5 and off.max() < 5  # OpenCV's places are multiples of 1/32 pixel


def test_displacement_is_scipy_s() -> None:
    image = picture(20, 26).astype(np.float64)
    generator = np.random.default_rng(1)
    down, right = (generator.uniform(-9, 9, size=(20, 26)) for _ in range(2))
    rows, columns = np.meshgrid(np.arange(20), np.arange(26), indexing="ij")
    places = torch.tensor(rows + down)[None], torch.tensor(columns + right)[None]
    found = imaging.sampled(planes(image), *places, edge_twice=True)[0]
    for channel in range(3):
        at = [rows + down, columns + right]
        want = ndimage.map_coordinates(image[:, :, channel], at, order=1, mode="reflect")
        assert np.abs(found[channel].numpy() - want).max() < 1e-6


def test_edges_and_distances_of_spatter_are_opencv_s() -> None:
    noise = draws(30).normal((1, 32, 32)).double() * 0.3 + 0.65
    drops = imaging.gaussian_blur(noise, 1)
    drops = drops.masked_fill(drops < 0.69, 0).mul(255).floor().clamp(0, 255)
    found = edges(drops)
    far = distances(found)
    spread = equalised(far.floor())
    wrong = 0
    for example, image in enumerate(drops[:, 0].numpy().astype(np.uint8)):
        wrong += int(((cv2.Canny(image, 50, 150) > 0) != found[example, 0].numpy()).sum())
        ours = np.where(found[example, 0].numpy(), 0, 255).astype(np.uint8)
        want = np.minimum(cv2.distanceTransform(ours, cv2.DIST_L2, 5), 20)
        assert np.abs(want - far[example, 0].numpy()).max() < 1e-3
        equal = cv2.equalizeHist(far[example, 0].floor().numpy().astype(np.uint8)).astype(int)
        assert np.abs(equal - spread[example, 0].numpy()).max() <= 1
    assert wrong / drops.numel() < 0.002  # OpenCV decides directions in whole numbers


def test_frost_is_an_even_choice_of_places_in_five_pictures() -> None:
    marked = [torch.full((3, 40, 60), 10 * i, dtype=torch.uint8) for i in range(6)]
    for one in marked:
        one[0] = torch.arange(60) * 4
        one[1] = torch.arange(40)[:, None] * 4
    crops = frost.cropped(frost.stock(marked[:5]), (32, 32), draws(3000))
    left, top, which = crops[:, 0, 0, 0] / 4, crops[:, 1, 0, 0] / 4, crops[:, 2, 0, 0] / 10
    assert {int(x) for x in left} == set(range(28)) and {int(x) for x in top} == set(range(8))
    counts = torch.bincount(which.long())
    assert len(counts) == 5 and int(counts.min()) > 520
    assert torch.equal(crops[:, 0, 5, 7] / 4, left + 7) and torch.equal(crops[:, 1, 5, 7] / 4, top + 5)


def test_pictures_of_frost_are_reduced_as_by_opencv_and_are_never_too_small() -> None:
    image = torch.arange(3 * 350 * 520).view(3, 350, 520).to(torch.uint8)
    assert torch.equal(frost.fitted(image, (32, 32), True), image[:, 2::5, 2::5])
    assert frost.fitted(image, (64, 64), True).shape == (3, 140, 208)
    assert torch.equal(frost.fitted(image, (224, 224), False), image)
    assert min(frost.fitted(image, (500, 500), False).shape[1:]) > 500


@pytest.mark.parametrize(
    ("name", "constants", "severity", "least"),
    [("pixelate", "imagenet", 5, 4), ("glass_blur", "imagenet", 5, 10), ("elastic_transform", "cifar", 1, 3)],
)
def test_images_too_small_are_refused(name: str, constants: str, severity: int, least: int) -> None:
    corruption = CORRUPTIONS.build(name, constants=constants)
    corruption(torch.rand(2, 3, least, least), severity, draws(2))
    with pytest.raises(
        RbError, match=f"pixels are too small for {name} at severity {severity}, which needs {least}"
    ):
        corruption(torch.rand(2, 3, least - 1, least), severity, draws(2))
