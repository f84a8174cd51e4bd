"""Families of transformations against torchvision and SciPy, and the attacks in them against enumeration."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor, nn

from rbtools.attacks.blur import Blur, BlurAttack
from rbtools.attacks.color import Color, ColorAttack
from rbtools.attacks.spatial import Spatial, SpatialAttack
from rbtools.attacks.zoom import Zoom, ZoomAttack
from rbtools.errors import RbError
from rbtools.models.torchvision_import import torchvision
from rbtools.threats.family import Family

functional: Any = torchvision.transforms.functional
BILINEAR = torchvision.transforms.InterpolationMode.BILINEAR
SHAPE = (3, 9, 12)


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.rand(6, *SHAPE, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 9 * 12, 4))
    return model.eval().requires_grad_(False)


def uniform(threat: Family, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return threat.at(torch.rand(count, len(threat.bounds), generator=generator))


def spatial(image: Tensor, point: Tensor) -> Tensor:
    """By SciPy: the place in the old image of each place in the new one."""
    degrees, *shift = point.tolist()
    sine, cosine = np.sin(np.deg2rad(degrees)), np.cos(np.deg2rad(degrees))
    matrix, centre = np.array([[cosine, sine], [-sine, cosine]]), (np.array(image.shape[1:]) - 1) / 2
    offset = centre - matrix @ (centre + shift)
    warp = [
        ndimage.affine_transform(one, matrix, offset, order=1, mode="grid-constant") for one in image.numpy()
    ]
    return torch.from_numpy(np.stack(warp))


def colours(image: Tensor, point: Tensor) -> Tensor:
    brightness, contrast, saturation, hue = point.tolist()
    image = functional.adjust_contrast(functional.adjust_brightness(image, 1 + brightness), 1 + contrast)
    changed: Tensor = functional.adjust_hue(functional.adjust_saturation(image, 1 + saturation), hue)
    return changed


def blurred(image: Tensor, point: Tensor) -> Tensor:
    return torch.from_numpy(
        np.stack(
            [ndimage.gaussian_filter(one, point.item(), mode="nearest", truncate=4) for one in image.numpy()]
        )
    )


def zoomed(image: Tensor, point: Tensor) -> Tensor:
    kept: dict[str, Any] = {"angle": 0.0, "translate": [0, 0], "shear": [0.0, 0.0], "interpolation": BILINEAR}
    moved: Tensor = functional.affine(image[None], scale=1 + point.item(), **kept)[0]
    return moved


REFERENCES = {
    "spatial": (Spatial(degrees=180.0, pixels=5.0), spatial),
    "color": (Color(what="all", amount=0.5), colours),
    "blur": (Blur(sigma=3.0), blurred),
    "zoom": (Zoom(share=0.5), zoomed),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_images_are_those_of_another_library(name: str, images: Tensor) -> None:
    threat, reference = REFERENCES[name]
    points = uniform(threat, len(images))
    points[0] = 0
    made = threat.made(points, images)
    assert torch.equal(made[0], images[0])
    for image, point, one in zip(images[1:], points[1:], made[1:], strict=True):
        torch.testing.assert_close(one, reference(image, point), atol=5e-6, rtol=0)


@pytest.mark.parametrize("name", REFERENCES)
def test_one_point_for_all_images_is_equal_to_the_bit(name: str, images: Tensor) -> None:
    threat, _ = REFERENCES[name]
    point = uniform(threat, 1)
    shared, own = point.expand(len(images), -1), point.repeat(len(images), 1)
    assert torch.equal(threat.made(shared, images), threat.made(own, images))


def test_points_are_judged_and_projected(images: Tensor) -> None:
    threat = Spatial(degrees=10.0, pixels=2.0)
    points = torch.tensor([[10.0, 2.0, -2.0], [10.1, 0.0, 0.0], [0.0, 0.0, -2.1]])
    assert threat.contains(points, images).tolist() == [True, False, False]
    assert threat.contains(threat.project(points, images), images).all()
    assert threat.distances(points, images).tolist() == pytest.approx([10, 10.1, 0])
    assert not Blur(sigma=1.0).contains(torch.tensor([[-0.1]]), images).any()


ATTACKS = {
    "spatial": (SpatialAttack(degrees=40.0, pixels=1.0, angles=5, shifts=3), (5, 3, 3), spatial),
    "color": (ColorAttack(what="all", amount=0.4, values=3), (3, 3, 3, 3), colours),
    "blur": (BlurAttack(sigma=2.0, values=5), (5,), blurred),
    "zoom": (ZoomAttack(share=0.4, values=7), (7,), zoomed),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_grid_is_searched_exactly(name: str, images: Tensor, network: nn.Module) -> None:
    """The images that the attack breaks are those of an enumeration with another library."""
    attack, counts, reference = ATTACKS[name]
    threat: Any = attack.threat
    axes = [np.linspace(low, high, n) for low, high, n in zip(threat.least, threat.most, counts, strict=True)]
    labels = network(images).argmax(1)
    expected = torch.zeros(len(images), dtype=torch.bool)
    for values in itertools.product(*axes):
        point = torch.tensor(values, dtype=torch.float32)
        made = (
            torch.stack([reference(image, point) for image in images]).clamp(0, 1) if point.any() else images
        )
        expected |= network(made.float()).argmax(1) != labels
    points = attack(network, images, labels)  # type: ignore[arg-type]
    broken = network(threat.made(points, images)).argmax(1) != labels
    assert broken.any() and torch.equal(broken, expected)
    assert attack.said()["points"] == np.prod(counts) and attack.said()["bound"] == "exact on the grid"


def test_the_order_decides_which_point_is_found_and_not_whether(images: Tensor, network: nn.Module) -> None:
    labels, found = network(images).argmax(1), {}
    for order in ("near", "far"):
        attack = ZoomAttack(share=0.4, values=201, order=order)
        points = attack(network, images, labels)  # type: ignore[arg-type]
        broken = network(attack.threat.made(points, images)).argmax(1) != labels
        found[order] = broken, attack.threat.distances(points, images)[broken]
    assert torch.equal(found["near"][0], found["far"][0])
    assert (found["near"][1] <= found["far"][1]).all() and (found["near"][1] < found["far"][1]).any()


def test_random_points_and_gradients_are_not_stronger_than_a_fine_grid(
    images: Tensor, network: nn.Module
) -> None:
    labels = network(images).argmax(1)
    broken = {}
    for mode in ("grid", "random", "gradient"):
        attack = ZoomAttack(share=0.4, values=201, mode=mode, samples=10, steps=20)
        points = attack(network, images, labels)  # type: ignore[arg-type]
        assert attack.threat.contains(points, images).all()
        broken[mode] = network(attack.threat.made(points, images)).argmax(1) != labels
    for mode in ("random", "gradient"):
        assert broken[mode].any() and not (broken[mode] & ~broken["grid"]).any()


def test_means_over_samples_are_refused() -> None:
    with pytest.raises(RbError, match="cannot average gradients"):
        ZoomAttack(share=0.2, eot=5).check_distance()


def test_grey_images_have_no_hue(network: nn.Module) -> None:
    with pytest.raises(RbError, match=r"needs images with 3 channels, .* but these have 1"):
        Color(what="hue").images(torch.full((2, 4), 0.1), torch.rand(2, 1, 4, 4))
    with pytest.raises(RbError, match="for hue, which is half"):
        ColorAttack(what="hue", amount=0.6)
