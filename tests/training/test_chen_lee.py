"""Chen and Lee's filter: the filtered examples, those that are still attacked, and the images of the loss."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rbtools.rng.draws import Draws
from rbtools.training import METHODS
from rbtools.training.chen_lee import ChenLee


class Line(nn.Module):
    """Two classes on either side of x = 1/2, by one pixel; counts the images that go through."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(10.0, dtype=torch.float64))
        self.sizes, self.modes = [], []

    def forward(self, images):
        self.sizes.append(len(images))
        self.modes.append(self.training)
        beyond = self.scale * (images.flatten(1)[:, 0] - 0.5)
        return torch.stack([-beyond, beyond], dim=1)


PLACES = (0.6, 0.47, 0.43, 0.2)
# The divergence grows with x: it raises the loss of class 0 and lowers that of class 1.
RAISED, LOWERED = (0, 0, 0, 1), (0, 0, 1, 1)  # of the batch's mean


def batch(labels=LOWERED, places=PLACES):
    images = torch.tensor(places, dtype=torch.float64).view(-1, 1, 1, 1)
    return images, torch.tensor(labels), Draws(0, "test", torch.arange(len(places)))


def method(name="trades", **params):
    return METHODS.build(name, **{"eps": 0.1, "step_size": 0.02, "attack_steps": 5, **params})


@pytest.fixture(autouse=True)
def beside_the_image(monkeypatch):
    """Attacks start a little beside the image, so that where they are can be told by hand."""
    monkeypatch.setattr("rbtools.training.base.Adversarial.begin", lambda self, images, draws: images + 1e-3)


def test_a_batch_whose_loss_the_attack_raises_is_attacked_to_the_end():
    net = Line()
    trained, stay, reached = ChenLee(method(), 2).inner_attack(net, *batch(RAISED))
    assert stay.all()
    assert trained.flatten().tolist() == pytest.approx([0.7, 0.57, 0.53, 0.3])
    assert reached.argmax(1).tolist() == [1, 1, 0, 0]
    assert net.sizes == [4] * 7  # clean, two steps, the look, three steps
    assert net.training and not any(net.modes)
    net, chosen = Line(), ChenLee(method("pgd", inner_mode="train"), 1)
    chosen.inner_attack(net, *batch(RAISED))
    assert all(net.modes) and not chosen.solves_in_eval  # it is judged in the mode of the attack


@pytest.mark.parametrize("rule", ["batch", "example"])
@pytest.mark.parametrize("name", ["pgd", "trades"])
def test_every_true_adversarial_example_stays(name, rule):
    """Seven that are right as they are and wrong after the warm steps: what the attack is for."""
    net, places = Line(), (0.47, 0.475, 0.48, 0.485, 0.49, 0.495, 0.499)
    images, labels, draws = batch((0,) * 7, places)
    assert net(images).argmax(1).tolist() == [0] * 7
    trained, stay, reached = ChenLee(method(name), 2, rule).inner_attack(net, images, labels, draws)
    assert reached.argmax(1).tolist() == [1] * 7
    assert stay.all() and (trained - images).flatten().tolist() == pytest.approx([0.1] * 7)


def ce(scale, place, labels):
    return torch.log1p(torch.exp((1 - 2 * labels) * 2 * scale * (place - 0.5)))


def kl(scale, place, other):
    p, q = torch.sigmoid(2 * scale * (place - 0.5)), torch.sigmoid(2 * scale * (other - 0.5))
    return p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()


@pytest.mark.parametrize(
    ("rule", "labels", "stay"),
    [
        ("batch", RAISED, (1, 1, 1, 1)),
        ("batch", LOWERED, (0, 0, 0, 0)),
        ("example", LOWERED, (1, 1, 0, 0)),
    ],
)
def test_who_left_has_the_clean_cross_entropy_and_the_others_the_methods(rule, labels, stay):
    net, (images, labels, draws) = Line(), batch(labels)
    net(images)
    loss = ChenLee(method(), 2, rule)(net, images, labels, draws)
    loss.value.backward()
    scale = torch.tensor(10.0, dtype=torch.float64, requires_grad=True)
    at = images.flatten()
    values = ce(scale, at, labels) + 6 * torch.tensor(stay) * kl(scale, at, at + 0.1)
    values.mean().backward()
    assert loss.value.item() == pytest.approx(values.mean().item(), rel=1e-9)
    assert net.scale.grad.item() == pytest.approx(scale.grad.item(), rel=1e-9)
    # The logits of filtered examples are those at the point where their attack stopped.
    reached = torch.where(torch.tensor(stay) > 0, at + 0.1, at + 0.041)
    assert loss.adversarial_logits.argmax(1).tolist() == (reached > 0.5).tolist()


@pytest.mark.parametrize("name", ["pgd", "alp", "mixed"])
def test_a_method_without_a_clean_pass_gets_the_clean_cross_entropy_of_who_left(name, monkeypatch):
    monkeypatch.setattr(
        "rbtools.training.base.Adversarial.climb", lambda self, m, images, start, o, n: start + 0.04
    )  # an attack that lowers the loss of class 1
    net, (images, labels, draws) = Line(), batch((0, 0, 0, 1))
    loss = ChenLee(method(name, attack_steps=2), 2, "example")(net, images, labels, draws)
    scale, at = torch.tensor(10.0, dtype=torch.float64), images.flatten()
    other = at + 0.081
    values = ce(scale, other, labels)
    if name == "mixed":
        values = (values + ce(scale, at, labels)) / 2
    if name == "alp":
        p, q = torch.sigmoid(20 * (at - 0.5)), torch.sigmoid(20 * (other - 0.5))
        values += 2 * (p - q) ** 2
    values[3] = ce(scale, at, labels)[3]
    assert loss.value.item() == pytest.approx(values.mean().item(), rel=1e-9)
