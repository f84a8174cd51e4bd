"""Attacks on images of 8 bits: against all points of small balls, and how points are rounded into a ball."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from torch import Tensor, nn

import rbtools
from rbtools.attacks import ATTACKS
from rbtools.attacks.base import Attack
from rbtools.attacks.curve import CurveAttack
from rbtools.attacks.cw_l2 import CWL2
from rbtools.attacks.pgd import PGD
from rbtools.errors import RbError
from rbtools.evaluation.distances import nearest
from tests.networks import images_for, linear

ORDER = {"linf": torch.inf, "l2": 2, "l1": 1}
N = 80
# These balls are small for the first steps of DDN, and Square has few queries to spend on two pixels.
SETTINGS = {
    "ddn": {"first_norm": 0.02, "step_size": 0.02},
    "square": {"queries": 200},
    "aa": {"attacks": "apgd-t,fab-t"},
}
EPS = {"linf": 2.4 / 255, "l2": 3.2 / 255, "l1": 3.7 / 255}


class Waves(nn.Module):
    """Three classes of two pixels, whose borders bend within some levels."""

    def forward(self, images: Tensor) -> Tensor:
        u, v = images.flatten(1).unbind(1)
        return torch.stack([(60 * u).sin() + v, (50 * v).cos() + u, (40 * (u + v)).sin()], dim=1)


def two_pixels() -> tuple[Waves, Tensor, Tensor]:
    """That network, images (n, 1, 1, 2) of 8 bits near its borders and at the box, and labels."""
    network = Waves()
    levels = torch.cartesian_prod(torch.arange(256), torch.arange(256)).view(-1, 1, 1, 2)
    labels = network(levels / 255).argmax(1).view(256, 256)
    near = torch.zeros(256, 256, dtype=torch.bool)
    for down, right in itertools.product((-5, 0, 5), repeat=2):
        near |= labels != labels.roll((down, right), (0, 1))
    rows = near.flatten().nonzero()[:, 0]
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:N]]
    return network, levels[rows].to(torch.uint8), labels.flatten()[rows]


def ball(image: Tensor, eps: float, norm: str) -> Tensor:
    """All images of 8 bits (m, 1, 1, 2) in the ball around one (1, 1, 2)."""
    steps = torch.cartesian_prod(torch.arange(-9, 10), torch.arange(-9, 10)).double()
    inside = torch.linalg.vector_norm(steps, ORDER[norm], dim=1) <= eps * 255 + 1e-9
    points = image.double().flatten() + steps[inside]
    return points[((points >= 0) & (points <= 255)).all(1)].view(-1, 1, 1, 2)


def robust(network: nn.Module, images: Tensor, labels: Tensor, eps: float, norm: str) -> Tensor:
    """Which images no image of 8 bits in the ball makes the network misclassify."""
    verdicts = [
        (network((ball(image, eps, norm) / 255).float()).argmax(1) == label).all()
        for image, label in zip(images, labels, strict=True)
    ]
    return torch.stack(verdicts)


def built(name: str, norm: str, **more: object) -> Attack | None:
    """The attack in that norm; None for one without it."""
    try:
        attack: Attack = ATTACKS.build(name, grid="8bit", **more)
        return attack if attack.norm == norm else ATTACKS.build(name, grid="8bit", norm=norm, **more)
    except RbError:
        return None


@pytest.mark.parametrize("norm", ORDER)
@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.slow
def test_every_attack_agrees_with_all_lattice_points(name: str, norm: str) -> None:
    attack = built(name, norm, eps=EPS[norm], **SETTINGS.get(name, {}))
    if attack is None:
        pytest.skip(f"{name} has no {norm}")
    network, images, labels = two_pixels()
    safe = robust(network, images, labels, EPS[norm], norm)
    assert 15 < safe.sum() < N - 15
    result = rbtools.evaluate(network, (images, labels), attack, keep_images=True)
    assert result.correct[safe].all()  # what no point of the lattice breaks counts as robust
    broken = ~result.correct
    changes = (result.images[broken] * 255).double() - images[broken].double()
    assert (changes - changes.round()).abs().max() < 1e-4
    sizes = torch.linalg.vector_norm(changes.round().flatten(1), ORDER[norm], dim=1)
    assert sizes.max() <= EPS[norm] * 255 + 1e-9
    assert (network(result.images[broken]).argmax(1) != labels[broken]).all()
    assert result.images.min() >= 0 and result.images.max() <= 1
    found = 0.75 if attack.uses_logits else 0.2  # labels of 8-bit images show the boundary coarsely
    assert broken.sum() >= found * (~safe).sum()  # and most of the others are found


def test_an_image_of_more_than_8_bits_or_a_ball_without_another_image_is_an_error() -> None:
    network, images = linear((3, 6, 6), 5), images_for(4, (3, 6, 6))
    labels = network(images).argmax(1)
    with pytest.raises(RbError, match="clean 8-bit images"):
        rbtools.evaluate(network, (images, labels), PGD(grid="8bit"))
    for attack in (PGD(eps=0.9 / 255, grid="8bit"), CWL2(eps=0.9 / 255, grid="8bit")):
        with pytest.raises(RbError, match=r"0\.9/255.*contains only the clean image"):
            rbtools.evaluate(network, ((images * 255).byte(), labels), attack)


def test_a_curve_on_the_lattice_has_its_distances() -> None:
    network, images, labels = two_pixels()
    eps = tuple(level / 255 for level in range(1, 6))
    curve = nearest([CurveAttack(queries=300, grid="8bit")], eps)
    curve = dataclasses.replace(curve, specs=curve.specs[:-1])  # without the median
    results = rbtools.evaluate(network, (images, labels), curve)
    result = results[0]
    levels = result.outcomes[:, 0][result.outcomes[:, 0].isfinite()] * 255
    assert (levels - levels.round()).abs().max() < 1e-3 and len(set(levels.round().tolist())) > 3
    for entry in (one.entry for one in results):
        exact = float(robust(network, images, labels, entry["eps"], "linf").float().mean())
        assert exact - 1e-6 <= entry["value"] <= exact + 0.1 and entry["grid"] == "8bit"
