"""The stages: each against another implementation or its definition, and as --defend names them."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from rbtools.defences.jpeg import Jpeg
from rbtools.defences.quantize import Quantize
from rbtools.defences.stages import Stages, parse
from rbtools.errors import RbError
from tests.networks import images_for


def smooth_images(count: int, side: int, channels: int = 3) -> Tensor:
    """Images like photographs: noise of few pixels, enlarged."""
    small = images_for(count, (channels, side // 4, side // 4))
    return F.interpolate(small, (side, side), mode="bicubic").clamp(0, 1)


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


def test_quantised_pixels_are_the_nearest_levels() -> None:
    images = images_for(2)
    levels = torch.arange(4) / 3
    nearest = levels[(images[..., None] - levels).abs().argmin(-1)]
    assert torch.allclose(Quantize(bits=2)(images), nearest)
    assert torch.equal(Quantize(bits=1)(images), images.round())


def test_a_list_names_stages_and_their_values() -> None:
    wanted = (Jpeg(quality=60), Quantize(bits=2), Quantize())
    assert parse("jpeg:60,quantize:2, quantize") == parse("jpeg:60,quantize:2,quantize:4") == wanted
    assert parse(Stages(wanted).text) == wanted


def test_keys_have_every_option_and_how_gradients_are_taken() -> None:
    lists = ["jpeg:75", "jpeg:60", "jpeg:75,quantize", "quantize,jpeg:75", "quantize:4", "quantize:2"]
    keys = [str(Stages(parse(text)).key_fields()) for text in lists]
    keys += [str(Stages(parse("jpeg:75"), backward).key_fields()) for backward in ("none", "identity")]  # type: ignore[arg-type]
    assert len({*keys}) == len(keys)
    assert Stages(parse("jpeg,quantize")).backwards == ["stand-in", "identity"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("quantise:2", "Unknown defence 'quantise'. Did you mean 'quantize'?"),
        ("jpeg:0", "quality of defence 'jpeg' is 0. It must be from 1 to 100."),
        ("jpeg:60:70", "quality of defence 'jpeg' is '60:70'. Expected a whole number."),
        (
            "python:mine:Stage",
            "python:mine:Stage runs your own Python code. If you trust it, add --allow-code.",
        ),
    ],
)
def test_a_wrong_list_is_refused_in_plain_words(text: str, says: str) -> None:
    with pytest.raises(RbError) as error:
        parse(text)
    assert says in str(error.value)
