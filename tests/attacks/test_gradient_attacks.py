"""FGSM and PGD: closed forms, budgets, semantics of iterates and restarts, independence of batches."""

from __future__ import annotations

import pytest
import torch

from rbtools.attacks import ATTACKS, steps
from rbtools.errors import RbError
from tests.networks import draws_for, images_for, linear

SHAPE = (1, 4, 4)


def two_class_direction(model, labels):
    """The gradient of the margin against the true class, z_other - z_y, (N, d)."""
    return (model[1].weight[1 - labels] - model[1].weight[labels]).double()


@pytest.mark.parametrize("eps", [1 / 255, 0.1, 0.6, 1.0])
@pytest.mark.parametrize(
    ("name", "params"),
    [("fgsm", {}), ("pgd", {"iterate": "last", "steps": 20}), ("pgd", {"iterate": "last", "start": "zero"})],
)
def test_linf_reaches_the_exact_worst_case_of_a_linear_model(name, params, eps):
    model, images = linear(SHAPE, 2), images_for(40, SHAPE)
    labels = model(images).argmax(1)
    if name == "pgd":
        params = {**params, "step_size": 2.5 * eps / 20}
    found = ATTACKS.build(name, eps=eps, **params)(model, images, labels, draws_for(40))
    # In the box and the ball each pixel goes as far as it may along the sign of its weight.
    direction = two_class_direction(model, labels).view_as(images)
    expected = (images.double() + eps * direction.sign()).clamp(0, 1)
    assert torch.allclose(found.double(), expected, atol=1e-6)


def test_l2_reaches_the_exact_worst_case_of_a_linear_model():
    # Away from the walls of the box the worst point is x + eps * w / |w|.
    model, images, eps = linear(SHAPE, 2), 0.4 + 0.2 * images_for(40, SHAPE), 0.3
    labels = model(images).argmax(1)
    direction = two_class_direction(model, labels)
    expected = images.double() + eps * (direction / direction.norm(dim=1, keepdim=True)).view_as(images)
    assert expected.min() > 0 and expected.max() < 1
    from_image = ATTACKS.build("pgd", eps=eps, norm="l2", start="zero", iterate="last")
    assert torch.allclose(from_image(model, images, labels, draws_for(40)).double(), expected, atol=2e-6)
    from_ball = ATTACKS.build("pgd", eps=eps, norm="l2", iterate="last", steps=40, step_size=eps / 4)
    gain = ((from_ball(model, images, labels, draws_for(40)) - images).flatten(1).double() * direction).sum(1)
    best = eps * direction.norm(dim=1)
    assert (gain > 0.999 * best).all() and (gain < (1 + 1e-6) * best).all()


def band(images):
    """Wrong only for a pixel in (0.515, 0.525), though the gradient always points upward."""
    pixel = images.flatten(1)[:, 0]
    inside = ((pixel > 0.515) & (pixel < 0.525)).float()
    return torch.stack([torch.zeros_like(pixel), 0.1 * pixel - 1 + 2 * inside], dim=1)


def test_any_returns_the_first_iterate_that_fools_and_last_the_last():
    images, labels = torch.full((1, 1, 1, 1), 0.5), torch.tensor([0])
    settings_ = {"eps": 0.1, "steps": 5, "step_size": 0.01, "start": "zero"}
    first = ATTACKS.build("pgd", iterate="any", **settings_)(band, images, labels, draws_for(1))
    last = ATTACKS.build("pgd", iterate="last", **settings_)(band, images, labels, draws_for(1))
    assert first.item() == pytest.approx(0.52, abs=1e-6)  # the second step; the third would leave the band
    assert last.item() == pytest.approx(0.55, abs=1e-6)


def cliff(images):
    """Wrong above 0.58, and no gradient anywhere: only the start decides."""
    pixel = images.flatten(1)[:, 0]
    wrong = (pixel > 0.58).float()
    return torch.stack([torch.zeros_like(pixel), 0 * pixel - 1 + 2 * wrong], dim=1)


@pytest.mark.parametrize("iterate", ["any", "last"])
def test_restarts_keep_what_an_earlier_one_broke(iterate):
    images, labels, draws = torch.full((200, 1, 1, 1), 0.5), torch.zeros(200).long(), draws_for(200)
    attack = ATTACKS.build("pgd", eps=0.1, steps=2, restarts=4, iterate=iterate)
    perturbed = attack(cliff, images, labels, draws)
    starts = torch.stack([steps.uniform_start(images, draws, 0.1, draw=r).flatten() for r in range(4)])
    fooled = starts > 0.58
    assert 0.05 < fooled[0].float().mean() < 0.16 and fooled.any(0).float().mean() > 0.25
    first = torch.where(fooled.any(0), fooled.float().argmax(0), torch.tensor(3))
    assert torch.equal(perturbed.flatten(), starts.gather(0, first[None])[0])


def test_restarts_from_the_same_start_are_refused():
    with pytest.raises(RbError, match=r"3 restarts but starts at the image.*start 'uniform', or restarts 1"):
        ATTACKS.build("pgd", restarts=3, start="zero")
