"""The shared pieces of gradient attacks against hand computation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rbtools.attacks import steps
from rbtools.rng.draws import Draws


def test_gradient_is_that_of_each_example_alone_and_leaves_no_trace():
    torch.manual_seed(0)
    net = nn.Linear(6, 3)
    images, labels = torch.rand(4, 1, 2, 3), torch.tensor([0, 1, 2, 0])
    gradient, logits = steps.input_gradient(lambda x: net(x.flatten(1)), images, steps.cross_entropy(labels))
    probabilities = torch.softmax(images.flatten(1) @ net.weight.T + net.bias, 1)
    expected = (probabilities - nn.functional.one_hot(labels, 3)) @ net.weight
    assert torch.allclose(gradient.flatten(1), expected, atol=1e-6)
    assert not logits.requires_grad and not gradient.requires_grad and not images.requires_grad
    assert all(p.grad is None and p.requires_grad for p in net.parameters())


def test_gradient_works_inside_no_grad():
    images = torch.rand(2, 1, 1, 2)
    with torch.no_grad():
        gradient, _ = steps.input_gradient(
            lambda x: x.flatten(1), images, steps.cross_entropy(torch.tensor([0, 1]))
        )
    assert gradient.abs().min() > 0


@pytest.mark.parametrize("trainable", [False, True])
def test_model_that_ignores_its_input_has_zero_gradient(trainable):
    bias = torch.tensor([1.0, 2.0], requires_grad=trainable)
    images = torch.rand(3, 1, 2, 2)
    gradient, logits = steps.input_gradient(
        lambda x: bias.expand(len(x), 2), images, steps.cross_entropy(torch.zeros(3).long())
    )
    assert torch.equal(gradient, torch.zeros_like(images)) and logits.shape == (3, 2)


def test_loss_of_a_half_precision_model_is_float32():
    seen = []

    def objective(logits):
        seen.append(logits.dtype)
        return logits.sum(1)

    _, logits = steps.input_gradient(lambda x: x.flatten(1).bfloat16(), torch.rand(2, 1, 1, 2), objective)
    assert seen == [torch.float32] and logits.dtype == torch.float32
    assert steps.widen(torch.zeros(1, dtype=torch.float64)).dtype == torch.float64


def test_projection_by_hand():
    images = torch.tensor([0.5, 0.05, 0.95, 0.5]).view(1, 1, 2, 2)
    point = torch.tensor([0.9, -0.3, 1.4, 0.52]).view(1, 1, 2, 2)
    linf = steps.project(point, images, 0.1, "linf").flatten()
    assert torch.allclose(linf, torch.tensor([0.6, 0.0, 1.0, 0.52]))
    delta = point - images
    l2 = steps.project(point, images, 0.1, "l2")
    assert torch.allclose(l2, (images + 0.1 * delta / delta.norm()).clamp(0, 1))
    near = images + 0.01 * delta
    assert torch.allclose(steps.project(near, images, 0.1, "l2"), near, atol=1e-7)


@pytest.mark.parametrize("eps", [0.5, 3.0, torch.tensor([0.2, 2.0, 1e6]).view(3, 1, 1, 1)])
def test_the_projection_in_l1_is_the_nearest_point_of_the_ball(eps):
    generator = torch.Generator().manual_seed(0)
    images = torch.full((3, 1, 4, 4), 0.5)
    points = images + 0.4 * torch.randn(images.shape, generator=generator).clamp(-1, 1)
    nearest = steps.project(points, images, eps, "l1")
    radius = torch.as_tensor(eps).expand(3, 1, 1, 1).flatten()
    change = (nearest - images).flatten(1)
    assert (change.abs().sum(1) <= radius * (1 + 1e-5)).all()
    inside = (points - images).flatten(1).abs().sum(1) <= radius
    torch.testing.assert_close(nearest[inside], points[inside])
    # The point is outside: the ball's nearest point is where the inner product with all others is smallest.
    for _ in range(300):
        other = torch.randn(change.shape, generator=generator)
        other = other / other.abs().sum(1, keepdim=True) * radius.clamp_max(10)[:, None]
        gap = (points - images).flatten(1) - change
        assert ((gap * (other - change)).sum(1)[~inside] <= 1e-5).all()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    eps=st.floats(0.01, 30),
    scale=st.sampled_from([1e-3, 0.1, 1.0, 30.0]),
    channels=st.integers(1, 3),
)
@pytest.mark.slow
def test_the_projection_in_l1_is_the_nearest_point_of_ball_and_box(seed, eps, scale, channels):
    # Against a bisection in float64 over the threshold of sign(d) clip(|d| - t, 0, room).
    generator = torch.Generator().manual_seed(seed)
    # some lie on the border of the box
    images = torch.rand(3, channels, 5, 5, generator=generator).round(decimals=1)
    points = images + scale * torch.randn(images.shape, generator=generator)
    nearest = steps.project(points, images, eps, "l1")
    assert nearest.min() >= 0 and nearest.max() <= 1
    assert ((nearest - images).double().flatten(1).abs().sum(1) <= eps + 3e-6).all()
    change = (points - images).double().flatten(1)
    room = torch.where(change > 0, 1 - images.flatten(1).double(), images.flatten(1).double())
    low, high = torch.zeros(3, 1).double(), change.abs().amax(1, keepdim=True)
    for _ in range(80):
        middle = (low + high) / 2
        over = (change.abs() - middle).clamp_min(0).minimum(room).sum(1, keepdim=True) > eps
        low, high = torch.where(over, middle, low), torch.where(over, high, middle)
    expected = change.sign() * (change.abs() - high).clamp_min(0).minimum(room)
    torch.testing.assert_close(
        (nearest - images).double().flatten(1), expected, rtol=1e-4, atol=2e-6 * max(scale, 1)
    )


def test_no_point_of_ball_and_box_is_nearer_than_the_projection_in_l1():
    # The projection onto a convex set: no step from it towards another point of the set leads nearer.
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(4, 1, 4, 4, generator=generator)
    points = images + torch.randn(images.shape, generator=generator)
    nearest, eps = steps.project(points, images, 1.5, "l1"), 1.5
    once_each = (images + (points - images) * eps / (points - images).abs().sum((1, 2, 3), True)).clamp(0, 1)
    gap = points - nearest
    assert (gap.square().sum((1, 2, 3)) < (points - once_each).square().sum((1, 2, 3))).all()
    for _ in range(500):
        other = torch.randn(images.shape, generator=generator)
        other = other * (torch.rand(images.shape, generator=generator) < 0.3)
        other = other / other.abs().sum((1, 2, 3), True).clamp_min(1e-6) * eps
        other = (images + other).clamp(0, 1)
        assert ((gap * (other - nearest)).sum((1, 2, 3)) <= 1e-5).all()


@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e-38, 1e25])
def test_l2_step_has_its_length_however_small_the_gradient(scale):
    gradient = scale * torch.tensor([[3.0, 4.0], [-5.0, 12.0]]).view(2, 1, 1, 2)
    moved = steps.ascend(torch.zeros(2, 1, 1, 2), gradient, 0.5, "l2").flatten(1)
    expected = 0.5 * torch.tensor([[0.6, 0.8], [-5 / 13, 12 / 13]])
    assert torch.allclose(moved, expected, rtol=1e-3)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_zero_gradient_does_not_move(norm):
    here = torch.rand(2, 1, 2, 2)
    assert torch.equal(steps.ascend(here, torch.zeros_like(here), 0.5, norm), here)


def test_linf_start_is_uniform_in_the_cube():
    images = torch.full((4000, 1, 1, 2), 0.5)
    start = steps.uniform_start(images, Draws(0, "test", torch.arange(4000)), 0.1)
    offset = (start - images).flatten(1) / 0.1
    assert kolmogorov((offset[:, 0] + 1) / 2) < 1.63 / 4000**0.5  # 1 % level
    assert abs(torch.corrcoef(offset.T)[0, 1]) < 0.05


def test_l2_start_is_uniform_in_the_ball():
    # Uniform in a ball of dimension d: (radius / eps)^d is uniform on [0, 1], directions average out.
    images = torch.full((4000, 1, 1, 3), 0.5)
    offset = steps.uniform_start(images, Draws(0, "test", torch.arange(4000)), 0.2, "l2") - images
    offset = offset.flatten(1) / 0.2
    radius = offset.norm(dim=1)
    assert kolmogorov(radius**3) < 1.63 / 4000**0.5
    direction = offset / radius[:, None]
    assert kolmogorov((direction[:, 0] + 1) / 2) < 1.63 / 4000**0.5  # Archimedes: uniform on a sphere's axis
    assert direction.mean(0).norm() < 0.05
    assert abs(torch.corrcoef(torch.stack([radius, direction[:, 1]]))[0, 1]) < 0.05


def test_starts_of_different_draws_differ():
    images, draws = torch.full((2, 1, 2, 2), 0.5), Draws(0, "test", torch.arange(2))
    for norm in ("linf", "l2"):
        assert not torch.equal(*(steps.uniform_start(images, draws, 0.1, norm, draw=d) for d in (0, 1)))


def kolmogorov(sample):
    """The largest distance of the sample's distribution from the uniform one on [0, 1]."""
    ordered = sample.double().sort().values
    count = len(ordered)
    above = torch.arange(1, count + 1) / count - ordered
    return max(above.max().item(), (1 / count - above).max().item())
