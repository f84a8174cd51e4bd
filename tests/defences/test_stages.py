"""The stages: each against another implementation or its definition, and as --defend names them."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from scipy import ndimage
from torch import Tensor

from rbtools.defences import DEFENCES
from rbtools.defences.base import Defence
from rbtools.defences.crop_ensemble import CropEnsemble
from rbtools.defences.gaussian import AddGaussian
from rbtools.defences.jpeg import Jpeg
from rbtools.defences.median import Median
from rbtools.defences.quantize import Quantize
from rbtools.defences.resize_pad import ResizePad
from rbtools.defences.stages import Stages, parse
from rbtools.defences.total_variation import _SMOOTH, TotalVariation
from rbtools.errors import RbError
from tests.networks import images_for

RANDOM = (AddGaussian(), ResizePad(), CropEnsemble(crops=3), TotalVariation(steps=3))


def smooth_images(count: int, side: int, channels: int = 3) -> Tensor:
    """Images like photographs: noise of few pixels, enlarged."""
    small = images_for(count, (channels, side // 4, side // 4))
    return F.interpolate(small, (side, side), mode="bicubic").clamp(0, 1)


@pytest.mark.parametrize("name", DEFENCES)
@pytest.mark.parametrize("shape", [(3, 12, 12), (1, 8, 10)])
def test_images_of_every_stage_are_in_the_box(name: str, shape: tuple[int, ...]) -> None:
    stage: Defence = DEFENCES.build(name)
    images = images_for(4, shape)
    before = images.clone()
    result = stage(images)
    assert result.shape == (4 * stage.copies, *shape) and result.dtype == torch.float32
    assert result.min() >= 0 and result.max() <= 1 and torch.equal(images, before)


@pytest.mark.parametrize("quality", [20, 75])
def test_jpeg_is_that_of_pillow(quality: int) -> None:
    images = smooth_images(2, 16)
    for image, result in zip(images, Jpeg(quality=quality)(images), strict=True):
        levels = (image * 255).round().byte().permute(1, 2, 0).numpy()
        stream = io.BytesIO()
        Image.fromarray(levels).save(stream, "JPEG", quality=quality)
        wanted = np.asarray(Image.open(stream), np.float32) / 255
        assert np.array_equal(result.permute(1, 2, 0).numpy(), wanted)


@pytest.mark.parametrize("shape", [(3, 32), (3, 21), (1, 16), (4, 9)])
@pytest.mark.parametrize("quality", [10, 50, 90])
def test_the_smooth_jpeg_is_near_the_true_one(shape: tuple[int, int], quality: int) -> None:
    """Nearer than the image itself, so that it has the same losses; and it has a gradient."""
    images = smooth_images(3, shape[1], shape[0]).requires_grad_()
    jpeg = Jpeg(quality=quality)
    true, stand_in = jpeg(images.detach()), jpeg.stand_in(images)
    assert stand_in.shape == true.shape
    apart = (stand_in - true).abs().mean()
    assert apart < 4 / 255 and (quality == 90 or apart < 0.6 * (images - true).abs().mean())
    (gradient,) = torch.autograd.grad(stand_in.square().sum(), images)
    assert (gradient.flatten(1).norm(dim=1) > 0.1).all()


def test_the_gradient_of_the_smooth_jpeg_is_its_own() -> None:
    images = smooth_images(1, 8).double().requires_grad_()
    assert torch.autograd.gradcheck(Jpeg(quality=30).stand_in, images, eps=1e-7, atol=1e-4, fast_mode=True)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_the_median_is_that_of_scipy(size: int) -> None:
    images = images_for(2, (3, 7, 6))
    wanted = ndimage.median_filter(images.numpy(), size=(1, 1, size, size), mode="reflect")
    assert np.array_equal(Median(size=size)(images).numpy(), wanted)


def test_a_window_larger_than_the_image_mirrors_it_again() -> None:
    images = images_for(1, (1, 3, 3))
    wanted = ndimage.median_filter(images.numpy(), size=(1, 1, 9, 9), mode="reflect")
    assert np.array_equal(Median(size=9)(images).numpy(), wanted)


def test_quantised_pixels_are_the_nearest_levels() -> None:
    images = images_for(2)
    levels = torch.arange(4) / 3
    nearest = levels[(images[..., None] - levels).abs().argmin(-1)]
    assert torch.allclose(Quantize(bits=2)(images), nearest)
    assert torch.equal(Quantize(bits=1)(images), images.round())


@pytest.mark.parametrize(
    "stage", [Median(), TotalVariation(steps=4, drop=0.0), AddGaussian(), CropEnsemble(crops=2), ResizePad()]
)
def test_a_gradient_of_its_own_is_that_of_finite_differences(stage: Defence) -> None:
    images = (0.2 + 0.6 * images_for(2, (1, 5, 5))).double().requires_grad_()

    def same_draws(images: Tensor) -> Tensor:
        torch.manual_seed(1)
        return stage(images)

    assert stage.backward == "own"
    assert torch.autograd.gradcheck(same_draws, images, eps=1e-6, atol=1e-5)


# --- total variation --------------------------------------------------------------------------------------


def objective(image: Tensor, given: Tensor, kept: Tensor, weight: float) -> float:
    """Half the squared distance on the kept pixels plus the smoothed total variation, pixel by pixel."""
    total = 0.0
    channels, height, width = image.shape
    for c in range(channels):
        for i in range(height):
            for j in range(width):
                total += 0.5 * float(kept[0, i, j]) * float(image[c, i, j] - given[c, i, j]) ** 2
                down = float(image[c, i + 1, j] - image[c, i, j]) if i + 1 < height else 0.0
                right = float(image[c, i, j + 1] - image[c, i, j]) if j + 1 < width else 0.0
                total += weight * (down**2 + right**2 + _SMOOTH**2) ** 0.5
    return total


@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_every_step_lowers_the_objective(drop: float) -> None:
    stage = TotalVariation(drop=drop, weight=0.1, steps=30)
    iterate, given, mask = stage.begin(images_for(1, (2, 5, 6)).double())
    values = []
    for number in range(30):
        values.append(objective(iterate[0], given[0], mask[0], 0.1))
        iterate = stage.step(iterate, number, given, mask)
    assert values == sorted(values, reverse=True) and values[-1] < 0.9 * values[0]


def test_a_step_goes_down_the_gradient_of_the_objective() -> None:
    stage = TotalVariation(drop=0.3, weight=0.05)
    iterate, given, mask = stage.begin(0.3 + 0.4 * images_for(1, (1, 4, 4)).double())
    change = stage.step(iterate, 0, given, mask) - iterate
    slope = torch.zeros_like(iterate)
    for place in np.ndindex(*iterate.shape):
        ends = []
        for sign in (1, -1):
            moved = iterate.clone()
            moved[place] += sign * 1e-6
            ends.append(objective(moved[0], given[0], mask[0], 0.05))
        slope[place] = (ends[0] - ends[1]) / 2e-6
    assert torch.allclose(change, -slope / (1 + 8 * 0.05 / _SMOOTH), atol=1e-7)


def test_dropped_pixels_are_not_seen() -> None:
    stage = TotalVariation()
    torch.manual_seed(0)
    iterate, given, mask = stage.begin(images_for(2))
    elsewhere = torch.where(mask > 0, given, 1 - given)
    torch.manual_seed(0)
    assert torch.equal(stage.begin(elsewhere)[0], iterate) and 0.2 < mask.mean() < 0.8


# --- random stages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", RANDOM, ids=lambda stage: stage.name)
def test_each_image_has_random_numbers_of_its_own(stage: Defence) -> None:
    torch.manual_seed(0)
    copies = stage(images_for(1, (1, 12, 12)).expand(40, -1, -1, -1)).unflatten(0, (40, -1)).flatten(1)
    assert len({tuple(row.tolist()) for row in copies}) > 3


def test_noise_has_its_spread() -> None:
    torch.manual_seed(0)
    noise = AddGaussian(sigma=0.05)(torch.full((50, 3, 8, 8), 0.5)) - 0.5
    assert noise.std() == pytest.approx(0.05, rel=0.05) and abs(noise.mean()) < 0.002


@pytest.mark.parametrize(("scale", "result"), [(331 / 299, 66), (0.9, 60), (0.5, 60)])
def test_a_resized_image_is_in_a_frame_of_zeros(scale: float, result: int) -> None:
    torch.manual_seed(0)
    framed = ResizePad(scale=scale)(torch.ones(60, 1, 60, 60))
    assert framed.shape == (60, 1, result, result)
    least, most = sorted((60, round(scale * 60)))
    rows, columns = (framed[:, 0].amax(dim).sum(1) for dim in (2, 1))
    assert torch.equal(rows, columns) and least <= rows.min() < rows.max() < most
    assert torch.equal(framed.sum((1, 2, 3)), rows * columns)  # one square
    first = framed[:, 0].amax(2).argmax(1)
    assert first.min() == 0 and len(first.unique()) > 2


def test_a_resized_image_has_the_nearest_pixels() -> None:
    image = images_for(1, (1, 8, 8))
    enlarged = ResizePad(scale=2.0)(image.expand(5, -1, -1, -1))
    for picture in enlarged[:, 0]:
        lines = (picture != 0).any(1).nonzero()[:, 0]
        columns = (picture != 0).any(0).nonzero()[:, 0]
        inside = picture[lines[0] : lines[-1] + 1, columns[0] : columns[-1] + 1]
        wanted = F.interpolate(image, inside.shape, mode="nearest")[0, 0]
        assert torch.equal(inside, wanted)


def test_crops_are_pieces_of_their_image() -> None:
    torch.manual_seed(0)
    images = images_for(2, (1, 8, 8))
    crops = CropEnsemble(crops=5, share=0.5)(images)
    pieces = images.unfold(2, 4, 1).unfold(3, 4, 1).reshape(2, -1, 1, 4, 4)
    for i, crop in enumerate(crops):
        sizes = F.interpolate(pieces[i // 5], (8, 8), mode="bilinear", align_corners=False)
        assert (sizes - crop).abs().amax((1, 2, 3)).min() < 1e-6


# --- the list ---------------------------------------------------------------------------------------------


def test_a_list_names_stages_and_options() -> None:
    wanted = (
        Jpeg(quality=60),
        TotalVariation(steps=5, weight=0.1),
        CropEnsemble(crops=2, share=0.5),
        Median(),
    )
    assert parse("jpeg:60,tv:weight=0.1:steps=5, crop-ensemble:2:share=0.5,median") == wanted
    assert parse("jpeg:quality=60,tv:weight=0.1,steps=5,crop-ensemble:2,share=.5,median:3") == wanted
    assert parse(Stages(wanted).text) == wanted


def test_keys_have_every_option_and_how_gradients_are_taken() -> None:
    lists = ["jpeg:75", "jpeg:60", "jpeg:75,median", "median,jpeg:75", "median:5", "quantize:4", "quantize:2"]
    keys = [str(Stages(parse(text)).key_fields()) for text in lists]
    keys += [str(Stages(parse("jpeg:75"), backward).key_fields()) for backward in ("none", "identity")]  # type: ignore[arg-type]
    assert len({*keys}) == len(keys)
    assert Stages(parse("jpeg,quantize")).backwards == ["stand-in", "identity"]
    plain, less_memory = (Stages(parse("tv"), None, some).key_fields() for some in (False, True))
    assert plain == less_memory


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("quantise:2", "Unknown defence 'quantise'. Did you mean 'quantize'?"),
        ("jpeg:0", "quality of defence 'jpeg' is 0. It must be from 1 to 100."),
        ("jpeg:fine", "quality of defence 'jpeg' is 'fine'. Expected a whole number."),
        ("jpeg:qualiti=3", "Defence 'jpeg' has no parameter 'qualiti'. Did you mean 'quality'?"),
        ("jpeg:60:70", "--defend jpeg:60:70: '70' is no OPTION=VALUE."),
        ("tv:drop=1", "drop of defence 'tv' is 1. It must be from 0 to below 1."),
        ("gaussian:-1", "sigma of defence 'gaussian' is -1. It must be 0 or more."),
        (" ,", "--defend is empty."),
        (
            "python:mine:Stage",
            "python:mine:Stage is a program, which would run. If you trust it, add --allow-code.",
        ),
    ],
)
def test_a_wrong_list_is_refused_in_plain_words(text: str, says: str) -> None:
    with pytest.raises(RbError) as error:
        parse(text)
    assert says in str(error.value)


def test_a_value_out_of_range_is_refused_in_python_too() -> None:
    with pytest.raises(RbError, match="bits of Quantize is 0"):
        Quantize(bits=0)
