"""AT-PR's candidates, its walks and its choice, on networks of two pixels where they can be drawn."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rbtools.rng.draws import Draws
from rbtools.training import METHODS
from tests.pretend_device import PretendDevice

STEP = 0.01


class Plane(nn.Module):
    """Right (class 0) where x0 + slope * x1 < 1/2; logits are the distance from there, times a scale."""

    def __init__(self, slope: float = 0.0, scale: float = 10.0) -> None:
        super().__init__()
        self.line = nn.Parameter(torch.tensor([1.0, slope], dtype=torch.float64))
        self.scale = scale

    def forward(self, images):
        beyond = self.scale * (images.flatten(1) @ self.line - 0.5)
        return torch.stack([-beyond, beyond], dim=1)


def method(**params):
    sizes = {"step_min": STEP, "step_max": STEP, "eps": 0.3}
    return METHODS.build("at-pr", **{**sizes, **params})


def point(*values):
    return torch.tensor(values, dtype=torch.float64).view(-1, 1, 1, 2)


ZERO = torch.zeros(1, dtype=torch.int64)


def sizes(count=1):
    return torch.full((count, 1, 1, 1), STEP, dtype=torch.float64)


@pytest.mark.parametrize("walk", ["sign", "margin"])
def test_the_depth_is_the_length_of_the_walk_to_the_border(walk):
    """0.037 beyond the line at x0 = 1/2 four steps of 0.01 lead back; what is right has no depth."""
    places = point(0.537, 0.2, 0.4, 0.2, 0.515, 0.2)
    depth, loss, _ = method(walk=walk).walked(Plane(), places, ZERO.expand(3), sizes(3))
    assert depth.tolist() == pytest.approx([0.04, -torch.inf, 0.02])
    assert loss[0].item() == pytest.approx(torch.log1p(torch.tensor(2 * 10 * 0.037).exp()).item(), rel=1e-6)
    assert loss[1].item() > 0


def test_the_walk_along_the_gradient_has_its_length():
    # CE = log(1 + exp(20 b)) at b beyond the line; its slope by x0 is 20 * sigmoid(20 b).
    place, steps = 0.9, 0
    while place >= 0.5 and steps < 10:
        b = torch.tensor(place - 0.5, dtype=torch.float64)
        place -= STEP * 20 * torch.sigmoid(20 * b).item()
        steps += 1
    depth, _, _ = method(walk="grad").walked(Plane(), point(0.9, 0.2), ZERO, sizes())
    assert steps == 3 and depth.item() == pytest.approx(0.9 - place, rel=1e-9)


FIRST = {"walk_size": "plain", "plain_step": STEP, "fallback": "first"}


@pytest.mark.parametrize(
    ("candidates", "chosen", "params"),
    [
        (((0.52, 0.9), (0.58, 0.1), (0.55, 0.0)), (0.58, 0.1), {}),  # the deepest
        (((0.41, 0.9), (0.47, 0.1), (0.44, 0.0)), (0.47, 0.1), {}),  # none is wrong: the highest loss
        (((0.521, 0.9), (0.529, 0.1)), (0.521, 0.9), FIRST),  # both are three steps beyond the line
        (((0.41, 0.9), (0.47, 0.1)), (0.41, 0.9), FIRST),  # none is wrong
    ],
)
def test_one_candidate_is_chosen(monkeypatch, candidates, chosen, params):
    made = (point(*one) for one in candidates)
    monkeypatch.setattr("rbtools.training.at_pr.ATPR.attacked", lambda *_: next(made))
    at_pr = method(candidates=len(candidates), **params)
    found = at_pr.inner_attack(Plane(), point(0.45, 0.2), ZERO, Draws(0, "test", torch.arange(1)))
    assert torch.equal(found, point(*chosen))


def test_an_attack_ends_where_the_written_out_loop_does():
    """Steps and step sizes are each image's own; an image that is done waits for the others."""
    net, chosen = Plane(slope=-0.5), method(step_max=4 * STEP, steps_min=1, steps_max=4, eps=0.1)
    images, count = torch.rand(6, 1, 1, 2, dtype=torch.float64), 6
    draws = Draws(5, "test", torch.arange(count)).child("candidate 0")
    found = chosen.attacked(net, images, ZERO.expand(count), draws, chosen.drawn(images, draws, 1))
    numbers = 1 + draws.child("steps").integers(4)
    assert len(set(numbers.tolist())) > 1
    for i in range(count):
        size = STEP + 3 * STEP * draws.child("size").uniform((1,))[i].item()
        place = (images[i] + 0.1 * (2 * draws.uniform((1, 1, 2))[i].double() - 1)).clamp(0, 1)
        for _ in range(int(numbers[i])):
            place = place + size * torch.tensor([[[1.0, -1.0]]], dtype=torch.float64)  # where CE grows
            place = torch.minimum(torch.maximum(place, images[i] - 0.1), images[i] + 0.1).clamp(0, 1)
        assert torch.allclose(found[i], place, atol=1e-6)


def test_settings_are_drawn_for_each_image_or_once_a_batch_and_the_first_may_be_plain():
    images, count = torch.rand(5, 1, 1, 2, dtype=torch.float64), 5
    ranges = {"step_max": 3 * STEP, "steps_min": 1, "steps_max": 50, "eps": 0.3, "eps_spread": 0.1}
    for settings, kinds in (("image", count), ("batch", 1)):
        draws = Draws(5, "test", torch.arange(7, 7 + count))
        chosen = method(settings=settings, first="plain", plain_step=0.02, plain_steps=3, **ranges)
        plain = chosen.drawn(images, draws, 0)
        assert plain.steps.tolist() == [3] * count
        assert plain.eps.unique().tolist() == [0.3] and plain.step_size.unique().tolist() == [0.02]
        found = chosen.drawn(images, draws, 1)
        assert len(found.step_size.unique()) == len(found.eps.unique()) == len(found.steps.unique()) == kinds
        assert found.step_size.min() >= STEP and found.step_size.max() <= 3 * STEP
        assert found.eps.min() >= 0.2 and found.eps.max() <= 0.3
        assert found.steps.min() >= 1 and found.steps.max() <= 50
        assert chosen.of_whole_batches is (settings == "batch")


@pytest.mark.parametrize(
    "settings", [{"walk_rest": 0.2}, {"walk_size": "plain", "walk": "grad"}, {"walk": "margin"}]
)
def test_a_gpu_finds_the_same_candidates_without_a_look(settings):
    """There no image leaves a walk or an attack, and one that is back stays where it is."""
    torch.manual_seed(0)
    images, labels = torch.rand(12, 1, 1, 2, dtype=torch.float64), torch.arange(12) % 2
    at_pr = method(candidates=3, steps_min=1, steps_max=4, walk_steps=9, **settings)
    want = at_pr.inner_attack(Plane(0.5), images, labels, Draws(1, "train", torch.arange(12)))
    with PretendDevice() as device:
        there = Plane(0.5).to("cuda"), images.to("cuda"), labels.to("cuda")
        draws = Draws(1, "train", torch.arange(12, device="cuda"), host=torch.arange(12))
        at_pr.inner_attack(*there, draws)  # fills caches
        device.reset()
        found = at_pr.inner_attack(*there, draws)
        assert not device.waits
    torch.testing.assert_close(found, want, rtol=0, atol=1e-12)


def test_a_walk_ends_after_its_steps_and_at_the_box():
    depth, _, _ = method(walk_steps=3).walked(Plane(), point(0.9, 0.2), ZERO, sizes())
    assert depth.item() == pytest.approx(3 * STEP)
    # Signs of the gradient lead down both axes; x1 stops at 0, below which three steps would be enough.
    depth, _, _ = method().walked(Plane(slope=0.1), point(0.5321, 0.005), ZERO, sizes())
    assert depth.item() == pytest.approx(4 * STEP)
