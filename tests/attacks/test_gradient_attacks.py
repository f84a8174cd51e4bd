"""FGSM, PGD, MI-FGSM and their common steps: closed forms, other libraries, iterates, restarts, starts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from rbtools.attacks import ATTACKS, steps
from rbtools.attacks.mi_fgsm import MIFGSM, copies
from rbtools.rng.draws import Draws
from rbtools.threats import ball
from tests.networks import InFloat64, draws_for, images_for, linear

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
    starts = torch.stack([ball.uniform_start(images, draws, 0.1, draw=r).flatten() for r in range(4)])
    fooled = starts > 0.58
    assert 0.05 < fooled[0].float().mean() < 0.16 and fooled.any(0).float().mean() > 0.25
    first = torch.where(fooled.any(0), fooled.float().argmax(0), torch.tensor(3))
    assert torch.equal(perturbed.flatten(), starts.gather(0, first[None])[0])


def test_loss_of_a_half_precision_model_is_float32():
    seen = []

    def objective(logits):
        seen.append(logits.dtype)
        return logits.sum(1)

    _, logits = steps.input_gradient(lambda x: x.flatten(1).bfloat16(), torch.rand(2, 1, 1, 2), objective)
    assert seen == [torch.float32] and logits.dtype == torch.float32
    assert steps.widen(torch.zeros(1, dtype=torch.float64)).dtype == torch.float64


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    eps=st.floats(0.01, 30) | st.just(torch.tensor([0.2, 2.0, 1e6]).view(3, 1, 1, 1)),
    scale=st.sampled_from([1e-3, 0.1, 1.0, 30.0]),
    channels=st.integers(1, 3),
)
def test_the_projection_in_l1_is_the_nearest_point_of_ball_and_box(seed, eps, scale, channels):
    # Against a bisection in float64 over the threshold of sign(d) clip(|d| - t, 0, room).
    generator = torch.Generator().manual_seed(seed)
    # some lie on the border of the box
    images = torch.rand(3, channels, 5, 5, generator=generator).round(decimals=1)
    points = images + scale * torch.randn(images.shape, generator=generator)
    nearest = ball.project(points, images, eps, "l1")
    assert nearest.min() >= 0 and nearest.max() <= 1
    radius = torch.as_tensor(eps).double().expand(3, 1, 1, 1).flatten(1)
    assert ((nearest - images).double().flatten(1).abs().sum(1, keepdim=True) <= radius + 3e-6).all()
    change = (points - images).double().flatten(1)
    room = torch.where(change > 0, 1 - images.flatten(1).double(), images.flatten(1).double())
    low, high = torch.zeros(3, 1).double(), change.abs().amax(1, keepdim=True)
    for _ in range(80):
        middle = (low + high) / 2
        over = (change.abs() - middle).clamp_min(0).minimum(room).sum(1, keepdim=True) > radius
        low, high = torch.where(over, middle, low), torch.where(over, high, middle)
    expected = change.sign() * (change.abs() - high).clamp_min(0).minimum(room)
    torch.testing.assert_close(
        (nearest - images).double().flatten(1), expected, rtol=1e-4, atol=2e-6 * max(scale, 1)
    )


@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e-38, 1e25])
def test_l2_step_has_its_length_however_small_the_gradient(scale):
    gradient = scale * torch.tensor([[3.0, 4.0], [-5.0, 12.0]]).view(2, 1, 1, 2)
    moved = steps.ascend(torch.zeros(2, 1, 1, 2), gradient, 0.5, "l2").flatten(1)
    expected = 0.5 * torch.tensor([[0.6, 0.8], [-5 / 13, 12 / 13]])
    assert torch.allclose(moved, expected, rtol=1e-3)


def test_l2_start_is_uniform_in_the_ball():
    # Uniform in a ball of dimension d: (radius / eps)^d is uniform on [0, 1], directions average out.
    images = torch.full((4000, 1, 1, 3), 0.5)
    offset = ball.uniform_start(images, Draws(0, "test", torch.arange(4000)), 0.2, "l2") - images
    offset = offset.flatten(1) / 0.2
    radius = offset.norm(dim=1)
    assert kolmogorov(radius**3) < 1.63 / 4000**0.5
    direction = offset / radius[:, None]
    assert kolmogorov((direction[:, 0] + 1) / 2) < 1.63 / 4000**0.5  # Archimedes: uniform on a sphere's axis
    assert direction.mean(0).norm() < 0.05
    assert abs(torch.corrcoef(torch.stack([radius, direction[:, 1]]))[0, 1]) < 0.05


def kolmogorov(sample):
    """The largest distance of the sample's distribution from the uniform one on [0, 1]."""
    ordered = sample.double().sort().values
    count = len(ordered)
    above = torch.arange(1, count + 1) / count - ordered
    return max(above.max().item(), (1 / count - above).max().item())


@pytest.mark.parametrize(("side", "sizes"), [(8, {7}), (32, {28, 29, 30, 31}), (1, {1})])
def test_copies_have_every_size_and_place_and_their_share(side: int, sizes: set[int]) -> None:
    count = 4000
    rows, columns = copies(torch.zeros(count, 1, side, side), draws_for(count), 3, 0.5)
    assert copies(torch.zeros(2, 1, side, side), draws_for(2), 3, 0.5)[0].equal(rows[:2])
    seen = (rows[:, 0].sum(2) > 0, columns[:, 0].sum(2) > 0)
    lengths = seen[0].sum(1)
    assert torch.equal(lengths, seen[1].sum(1))
    whole = lengths == side
    assert {*lengths[~whole].tolist()} == sizes - {side}
    assert side == 1 or abs(whole.float().mean() - 0.5) < 0.04
    for one in seen:
        starts = one.int().argmax(1)
        assert {*starts[~whole].tolist()} == ({*range(side - min(sizes) + 1)} if side > 1 else set())
    places = {*zip(*(one[~whole].int().argmax(1).tolist() for one in seen), strict=True)}
    assert len(places) == (side - min(sizes) + 1) ** 2 if side > 1 else not places


def test_the_gradient_is_that_of_the_logits_of_the_copy() -> None:
    """By torch's own differentiation through interpolation, padding and the network."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)).eval()
    images = images_for(6, (3, 8, 8))
    labels = layers(images).argmax(1)
    attack = MIFGSM(eps=0.1, steps=1, diversity=1.0, norm="l2")
    rows, columns = copies(images, draws_for(6), 0, 1.0)
    inputs = images.clone().requires_grad_(True)
    parts = []
    for image, row, column in zip(inputs, rows[:, 0], columns[:, 0], strict=True):
        top, left = (int((one.sum(1) > 0).int().argmax()) for one in (row, column))
        small = F.interpolate(image[None], (7, 7), mode="bilinear", align_corners=False)
        parts.append(F.pad(small, (left, 1 - left, top, 1 - top)))
    F.cross_entropy(layers(torch.cat(parts)), labels, reduction="sum").backward()
    wanted = inputs.grad / inputs.grad.flatten(1).norm(dim=1)[:, None, None, None]
    found = attack(layers, images, labels, draws_for(6))
    assert torch.allclose(found, (images + 0.1 * wanted).clamp(0, 1), atol=1e-5)


@pytest.mark.parametrize("kernel", [0, 3, 7])
def test_it_takes_the_steps_of_torchattacks(kernel: int) -> None:
    import torchattacks

    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 5))
    network, images = InFloat64(layers).eval(), images_for(12, (3, 8, 8), seed=1)
    labels = network(images).argmax(1)
    how: dict[str, Any] = {"eps": 0.05, "alpha": 0.02, "steps": 7, "decay": 1.0}
    if kernel:
        reference = torchattacks.TIFGSM(network, len_kernel=kernel, diversity_prob=0.0, **how)
    else:
        reference = torchattacks.MIFGSM(network, **how)
    attack = MIFGSM(eps=0.05, step_size=0.02, steps=7, kernel=kernel)
    found = attack(network, images, labels, draws_for(12))
    assert torch.allclose(found, reference(images, labels), atol=2e-6)
    assert (network(found).argmax(1) != labels).sum() > 2


def test_steps_and_names() -> None:
    def build(**params: Any) -> Any:
        return ATTACKS.build("mi-fgsm", **params)

    assert build(eps=16 / 255).effective_step_size == pytest.approx(1.6 / 255)  # Dong et al. 2018
    assert build(eps=0.2, relative_step=0.25).effective_step_size == pytest.approx(0.05)
    assert build(eps=0.2, steps=5, step_size=0.03).reach == pytest.approx(0.15)
    assert build().stem == "mi-fgsm10" and build(norm="l2", steps=4).stem == "mi-fgsm4.l2"
    assert build(diversity=0.5).random and not build(kernel=3).random
