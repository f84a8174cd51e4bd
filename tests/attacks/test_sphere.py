"""The adversary of NAS-RobBench-201's theory: an L2 ball cut with the sphere of the image's norm."""

from __future__ import annotations

import pytest
import torch

import rbtools
from rbtools.attacks.pgd import PGD
from rbtools.errors import RbError
from rbtools.threats import ball
from rbtools.training import METHODS
from tests.networks import draws_for, images_for

IMAGES = images_for(64, (2, 3, 3)) + 0.1
W = torch.randn(18, generator=torch.Generator().manual_seed(2))
W -= W.mean()  # so that a change of all pixels changes nothing


class Linear(torch.nn.Module):
    """The logits 0 and W.x."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        f = x.flatten(1) @ W
        return torch.stack([torch.zeros_like(f), f], dim=1)


def norms(x: torch.Tensor) -> torch.Tensor:
    return x.flatten(1).norm(dim=1)


@pytest.mark.parametrize("eps", [0.01, 0.3, 1.5, 2.5])
def test_the_projection_is_the_nearest_point_of_sphere_and_ball(eps: float) -> None:
    images = IMAGES[:5].double()
    generator = torch.Generator().manual_seed(1)
    points = images + torch.randn(images.shape, generator=generator, dtype=images.dtype)
    found = ball.project(points, images, eps, "sphere")
    torch.testing.assert_close(norms(found), norms(images))
    assert (norms(found - images) <= eps * norms(images) * (1 + 1e-9)).all()
    # No other point of the cap is nearer to the point, once that is on the sphere.
    reached = points / norms(points).view(-1, 1, 1, 1) * norms(images).view(-1, 1, 1, 1)
    distance = norms(found - reached)
    for seed in range(200):
        other = torch.randn(images.shape, generator=generator.manual_seed(seed), dtype=images.dtype)
        other = found + 0.05 * other
        other = other / norms(other).view(-1, 1, 1, 1) * norms(images).view(-1, 1, 1, 1)
        inside = norms(other - images) <= eps * norms(images)
        assert (norms(other - reached)[inside] >= distance[inside] - 1e-9).all()
    torch.testing.assert_close(ball.project(images, images, eps, "sphere"), images)


def test_a_radius_beyond_the_sphere_is_a_slip_of_unit() -> None:
    with pytest.raises(RbError, match="a fraction of an image's norm from 0 to 2"):
        METHODS.build("mixed", norm="sphere", eps=16.0)


def test_small_radii_are_kept_in_single_precision() -> None:
    images = IMAGES[:5]
    found = ball.project(images + 0.5 * torch.rand_like(images), images, 1e-3, "sphere")
    torch.testing.assert_close(norms(found - images), 1e-3 * norms(images), rtol=1e-3, atol=0)


def test_starts_lie_in_the_ball_on_the_sphere() -> None:
    start = ball.uniform_start(IMAGES, draws_for(64), 0.2, "sphere")
    torch.testing.assert_close(norms(start), norms(IMAGES))
    far = norms(start - IMAGES) / norms(IMAGES)
    assert (far <= 0.2 * (1 + 1e-5)).all() and float(far.max()) > 0.1


def test_the_attack_reaches_the_worst_point_of_the_cap_for_a_linear_network() -> None:
    """Logits (0, w.x): the loss of class 0 grows with w.x, which is largest, among the points of norm |x| at
    most eps |x| away, in the plane of x and w: cos(t) u + sin(t) v, v the part of w across u."""
    images, eps = IMAGES[:5], 0.3
    method = METHODS.build("mixed", norm="sphere", eps=eps, step_size=0.05, attack_steps=60)
    found = method.perturb(Linear(), images, torch.zeros(5, dtype=torch.int64), draws_for(5))
    u = images.flatten(1) / norms(images)[:, None]
    v = W - (u @ W)[:, None] * u
    v = v / v.norm(dim=1, keepdim=True)
    cosine = 1 - eps**2 / 2
    worst = norms(images)[:, None] * (cosine * u + (1 - cosine**2) ** 0.5 * v)
    torch.testing.assert_close(found.flatten(1), worst, rtol=1e-2, atol=2e-2)
    torch.testing.assert_close(norms(found), norms(images))


def test_robust_accuracy_on_the_sphere_is_that_of_the_worst_point_of_the_cap() -> None:
    images, eps = images_for(64, (2, 3, 3)), 0.1
    output = images.flatten(1) @ W
    labels = (output > 0).long()
    accuracy = rbtools.evaluate(Linear(), (images, labels), PGD(norm="sphere", eps=eps, steps=40))
    # Along the sphere, the output moves at most by |x| sin(t) |w across u| beside cos(t) W.x.
    u, cosine = images.flatten(1) / norms(images)[:, None], 1 - eps**2 / 2
    across = (W.square().sum() - (u @ W).square()).sqrt() * (1 - cosine**2) ** 0.5
    worst = norms(images) * (cosine * (u @ W) - (2 * labels - 1) * across)
    expected = (worst > 0) == labels.bool()
    assert torch.equal(accuracy.correct, expected) and 0.2 < accuracy.value < 0.8
    for wrong in ({"eps": 8.0}, {"eps": eps, "grid": "8bit"}):
        with pytest.raises(RbError, match=r"0 to 2|8-bit"):
            rbtools.evaluate(Linear(), (images, labels), PGD(norm="sphere", **wrong))
