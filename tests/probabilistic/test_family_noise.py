"""Noise in families of transformations against quadrature, and its intervals against a known truth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rbtools
from rbtools.attacks.spatial import Rotation, Spatial
from rbtools.attacks.zoom import Zoom
from rbtools.corruptions import CORRUPTIONS
from rbtools.corruptions.corruption_noise import CorruptionNoise
from rbtools.errors import RbError
from rbtools.evaluation.probabilistic import noisy
from rbtools.probabilistic import NOISES
from rbtools.probabilistic.estimate import Estimator
from rbtools.rng.draws import of_images


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.rand(20, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 3)).eval().requires_grad_(False)


def truth(network: nn.Module, images: Tensor, labels: Tensor, degrees: float) -> Tensor:
    """The share of angles, of 801, at which each image is classified correctly."""
    threat, right = Spatial(degrees=degrees, pixels=0.0), torch.zeros(len(images))
    angles = torch.linspace(-degrees, degrees, 801)
    for angle in angles:
        made = threat.made(torch.tensor([[angle, 0.0, 0.0]]).expand(len(images), 3), images)
        right += network(made).argmax(1) == labels
    return right / len(angles)


def test_rotation_agrees_with_quadrature(images: Tensor, network: nn.Module) -> None:
    labels = network(images).argmax(1)
    exact = float(truth(network, images, labels, 60.0).mean())
    task = noisy(NOISES.build("rotation"), (60.0,), Estimator(rho=()), 400)
    found = rbtools.evaluate(network, (images, labels), task)
    assert 0.3 < exact < 0.97
    assert abs(float(found.value) - exact) < 4 * np.sqrt(0.25 / (400 * len(images)))


@pytest.mark.parametrize("name", [name for name in NOISES if name not in ("uniform", "gaussian", "laplace")])
def test_copies_depend_on_the_example_alone(name: str, images: Tensor) -> None:
    noise = NOISES.build(name)
    gamma = float(noise.radii.split(",")[0])
    copies = noise(images, gamma, samples=2)
    assert torch.equal(noise(images[4:6], gamma, draw=1, examples=torch.tensor([4, 5])), copies[1, 4:6])
    assert copies.min() >= 0 and copies.max() <= 1
    assert not torch.equal(copies[0], images) and noise.definition and gamma <= noise.largest


def test_normal_numbers_make_the_same_distribution(images: Tensor) -> None:
    noise = Rotation()
    drawn = noise.unit(of_images("noise.rotation", torch.zeros(20_000, 1, 1, 1), 0), (3, 8, 8), 0)
    shaped = noise.shaped(torch.randn(20_000, 3, generator=torch.Generator().manual_seed(0)), (3, 8, 8))
    for column in range(3):
        for values in (drawn[:, column], shaped[:, column]):
            assert (
                torch.tensor([0.1, 0.5, 0.9])
                .double()
                .sub(values.double().add(1).div(2).quantile(torch.tensor([0.1, 0.5, 0.9]).double()))
                .abs()
                .max()
                < 0.02
            )


def test_a_corruption_as_noise_has_its_own_numbers(images: Tensor) -> None:
    noise = CorruptionNoise(corruption="gaussian_noise")
    one, other = noise(images, 2, samples=2)
    assert not torch.equal(one, other)
    plain = CORRUPTIONS.build("gaussian_noise")(images, 2)
    assert abs(float((one - images).std() / (plain - images).std()) - 1) < 0.1
    with pytest.raises(RbError, match="not a severity"):
        noise(images, 1.5)
    with pytest.raises(RbError, match="function of normal numbers"):
        noise.width((3, 8, 8))


def test_the_magnification_of_zoom_is_within_its_share(images: Tensor) -> None:
    points = Zoom(share=0.3).at(torch.tensor([[0.0], [0.5], [1.0]]))
    assert points.flatten().tolist() == pytest.approx([-0.3, 0, 0.3])
