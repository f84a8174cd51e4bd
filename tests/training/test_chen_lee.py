"""Chen and Lee's filter: who leaves, what is still attacked, and what is trained on then."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rbtools.engine.draws import Draws
from rbtools.training import METHODS
from rbtools.training.chen_lee import ChenLee


class Line(nn.Module):
    """Two classes on either side of x = 1/2, by one pixel; counts the images that go through."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(10.0, dtype=torch.float64))
        self.sizes = []

    def forward(self, images):
        self.sizes.append(len(images))
        beyond = self.scale * (images.flatten(1)[:, 0] - 0.5)
        return torch.stack([-beyond, beyond], dim=1)


# Wrong from the start; wrong after the warm steps; right after them and wrong after all; always right.
PLACES, LABELS = (0.6, 0.47, 0.43, 0.2), torch.zeros(4, dtype=torch.int64)


def batch():
    images = torch.tensor(PLACES, dtype=torch.float64).view(-1, 1, 1, 1)
    return images, LABELS, Draws(0, "test", torch.arange(4))


def method(name, **params):
    return METHODS.build(name, **{"eps": 0.1, "step_size": 0.02, "attack_steps": 5, **params})


@pytest.fixture(autouse=True)
def from_the_image(monkeypatch):
    """Attacks start at the image, so that where they are can be told by hand."""
    monkeypatch.setattr("rbtools.training.base.Adversarial.begin", lambda self, images, draws: images)


def test_who_is_wrong_leaves_and_the_others_are_attacked_to_the_end():
    net = Line()
    trained, stay, found = ChenLee(method("pgd"), 2).solve(net, *batch())
    assert stay.tolist() == [False, False, True, True]
    assert trained.flatten().tolist() == pytest.approx([0.6, 0.47, 0.53, 0.3])
    assert found.argmax(1).tolist() == [1, 1, 0, 0]
    assert net.sizes == [4, 4, 4, 4, 2, 2, 2]  # clean, two steps, the look, three steps of those who stay
    assert net.training


def test_no_warm_steps_look_at_the_start():
    _, stay, _ = ChenLee(method("pgd"), 0).solve(Line(), *batch())
    assert stay.tolist() == [False, True, True, True]


def test_where_all_leave_there_is_no_attack():
    net = Line()
    images, _, draws = batch()
    trained, stay, _ = ChenLee(method("pgd"), 2).solve(net, images, torch.tensor([0, 0, 1, 1]), draws)
    assert not stay[:2].any() and not stay[2:].any() and torch.equal(trained, images)
    assert net.sizes == [4, 4, 4, 4]


def ce(scale, place):
    return torch.log1p(torch.exp(2 * scale * (place - 0.5)))


@pytest.mark.parametrize("name", ["pgd", "alp", "mixed"])
def test_who_left_has_the_clean_cross_entropy_and_the_others_the_methods(name):
    net, (images, labels, draws) = Line(), batch()
    loss = ChenLee(method(name), 2)(net, images, labels, draws)
    scale = torch.tensor(10.0, dtype=torch.float64)
    at = torch.tensor([0.6, 0.47, 0.53, 0.3], dtype=torch.float64)
    values, clean = ce(scale, at), ce(scale, images.flatten())
    if name == "mixed":
        values[2:] = (values[2:] + clean[2:]) / 2
    if name == "alp":
        p, q = torch.sigmoid(20 * (images.flatten() - 0.5)), torch.sigmoid(20 * (at - 0.5))
        values[2:] += 2 * (p - q)[2:] ** 2
    assert loss.value.item() == pytest.approx(values.mean().item(), rel=1e-9)
    # What is told of who left is where the attack left them: wrong.
    assert loss.adversarial_logits.argmax(1).tolist() == [1, 1, 1, 0]


def test_trades_climbs_the_divergence_from_the_clean_logits_it_has_already(monkeypatch):
    monkeypatch.setattr("rbtools.training.base.Adversarial.begin", lambda self, images, draws: images + 1e-3)
    net, (images, labels, draws) = Line(), batch()
    trained, stay, _ = ChenLee(method("trades"), 2).solve(net, images, labels, draws)
    assert stay.tolist() == [False, False, True, True]
    assert trained.flatten().tolist() == pytest.approx([0.6, 0.47, 0.53, 0.3])
    assert net.sizes == [4, 4, 4, 4, 2, 2, 2]


def test_the_gradient_of_who_left_is_that_of_the_clean_image():
    net, (images, labels, draws) = Line(), batch()
    ChenLee(method("pgd"), 2)(net, images, labels, draws).value.backward()
    scale = torch.tensor(10.0, dtype=torch.float64, requires_grad=True)
    ce(scale, torch.tensor([0.6, 0.47, 0.53, 0.3], dtype=torch.float64)).mean().backward()
    assert net.scale.grad.item() == pytest.approx(scale.grad.item(), rel=1e-9)
