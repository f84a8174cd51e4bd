"""Augmentation: windows of the padded image, mirrors, and choices that belong to the example."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rbtools.rng.draws import Draws
from rbtools.trainer.augment import augment, cutout
from tests.pretend_device import PretendDevice


def draws_for(count: int, epoch: int = 0, seed: int = 0) -> Draws:
    return Draws(seed, "train", torch.arange(count), offset=epoch)


def images_of(count: int, size: tuple[int, int, int]) -> Tensor:
    """Every pixel differs from its neighbours, so that a window shows where it comes from."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 256, (count, *size), generator=generator).to(torch.uint8)


def place_of(window: Tensor, image: Tensor, pad: int, mode: str) -> tuple[int, int] | None:
    """Where in the padded image this window lies."""
    height, width = image.shape[1:]
    padded = F.pad(image[None].float(), (pad, pad, pad, pad), mode)[0].to(torch.uint8)
    for row in range(2 * pad + 1):
        for column in range(2 * pad + 1):
            if torch.equal(padded[:, row : row + height, column : column + width], window):
                return row, column
    return None


@pytest.mark.parametrize(
    ("size", "pad"), [((1, 8, 8), 1), ((3, 32, 32), 4), ((3, 16, 16), 2), ((3, 32, 16), 4), ((1, 4, 4), 1)]
)
@pytest.mark.parametrize(("kind", "mode"), [("crop", "constant"), ("crop-reflect", "reflect")])
def test_a_crop_is_a_window_of_the_padded_image(
    size: tuple[int, int, int], pad: int, kind: str, mode: str
) -> None:
    images = images_of(60, size)
    cropped = augment(images, [kind], draws_for(60))
    assert cropped.shape == images.shape and cropped.dtype == torch.uint8
    places = [place_of(window, image, pad, mode) for window, image in zip(cropped, images, strict=True)]
    assert None not in places
    for axis in (0, 1):
        assert {0, 2 * pad} <= {place[axis] for place in places if place}
    assert len(set(places)) > 5  # rows and columns are drawn apart


def test_half_of_the_images_are_mirrored() -> None:
    images = images_of(1000, (3, 8, 8))
    flipped = augment(images, ["flip"], draws_for(1000))
    mirrored = (flipped == images.flip(3)).flatten(1).all(1)
    same = (flipped == images).flatten(1).all(1)
    assert bool((mirrored ^ same).all())
    assert 437 < int(mirrored.sum()) < 563  # four standard deviations


def test_choices_belong_to_example_epoch_and_seed() -> None:
    images, kinds = images_of(40, (1, 8, 8)), ["crop", "flip"]
    assert augment(images, [], draws_for(40)) is images
    whole = augment(images, kinds, draws_for(40))
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    for part in order.split(7):
        draws = Draws(0, "train", part)
        assert torch.equal(augment(images[part], kinds, draws), whole[part])
    assert not torch.equal(augment(images, kinds, draws_for(40, epoch=1)), whole)
    assert not torch.equal(augment(images, kinds, draws_for(40, seed=1)), whole)


def test_crop_and_flip_do_not_choose_together() -> None:
    images = images_of(1, (1, 8, 8)).expand(4000, 1, 8, 8)
    both = augment(images, ["crop", "flip"], draws_for(4000))
    _, found = torch.unique(both.flatten(1), dim=0, return_counts=True)
    assert len(found) == 18
    assert float(((found - 4000 / 18) ** 2 / (4000 / 18)).sum()) < 40.8  # 17 degrees of freedom, .001


def test_a_gpu_gets_the_choices_of_the_cpu_and_launches_few_kernels() -> None:
    images, ids, kinds = images_of(5, (3, 16, 16)), torch.arange(5), ["crop", "flip"]
    wanted = cutout(augment(images, kinds, draws_for(5)), 4, draws_for(5))
    with PretendDevice() as device:
        there, launches = images.to("cuda"), []
        for host in (None, ids):  # in a training the examples are known on the host
            draws = Draws(0, "train", ids.pin_memory().to("cuda", non_blocking=True), host=host)
            device.reset()
            found = cutout(augment(there, kinds, draws), 4, draws)
            assert host is None or not device.waits
            launches.append(device.launches.total())
            assert torch.equal(found.cpu(), wanted)
    assert launches[1] < 60 < launches[0]
