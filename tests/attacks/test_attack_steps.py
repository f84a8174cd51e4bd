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
    nearest = steps.project(points, images, eps, "l1")
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


def kolmogorov(sample):
    """The largest distance of the sample's distribution from the uniform one on [0, 1]."""
    ordered = sample.double().sort().values
    count = len(ordered)
    above = torch.arange(1, count + 1) / count - ordered
    return max(above.max().item(), (1 / count - above).max().item())
