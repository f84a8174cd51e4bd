"""CVaR, EVaR and corruption training against numeric minimisation and written-out loops, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import optimize, stats
from torch import nn

from rbtools.rng.draws import Draws
from rbtools.training import METHODS
from rbtools.training.base import noisy

COUNT, SAMPLES = 5, 6


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(8, 3)).double().train()


def batch():
    images = torch.rand(COUNT, 2, 2, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return images, torch.arange(COUNT) % 3, Draws(3, "test", torch.arange(COUNT), offset=2)


def losses_of(net, images, labels, draws, number):
    """loss[m][i] of the round's points, written out."""
    rows = []
    for sample in range(SAMPLES):
        unit = draws.child(f"round {number} sample {sample}").uniform((2, 2, 2)).double() * 2 - (1 - 2**-24)
        logits = net((images + 0.3 * unit).clamp(0, 1))
        rows.append(torch.stack([z.exp().sum().log() - z[y] for z, y in zip(logits, labels, strict=True)]))
    return torch.stack(rows)


def agree(found, net, expected, other):
    found.backward()
    expected.backward()
    assert found.item() == pytest.approx(expected.item(), rel=1e-9)
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.allclose(mine.grad, theirs.grad, atol=1e-9)


@pytest.mark.parametrize("step", ["image", "batch"])
@pytest.mark.parametrize("beta", [0.5, 0.25])
@pytest.mark.parametrize("tail", ["prl", "advbench"])
def test_the_threshold_moves_as_it_is_printed(tail, beta, step):
    images, labels, draws = batch()
    net, other = network(), network()
    rules = {"tail": tail, "tail_step": step, "tail_lr": 0.2}
    method = METHODS.build("cvar", eps=0.3, samples=SAMPLES, rounds=3, beta=beta, **rules)
    move = 0.2 / (COUNT if step == "batch" else 1)
    t = [1.0] * COUNT
    for number in range(3):
        loss = losses_of(other, images, labels, draws, number)
        before = list(t)
        for i in range(COUNT):
            above = sum(v > t[i] or (tail == "prl" and v == t[i]) for v in loss[:, i].tolist())
            t[i] -= move * (1 - above / (beta * SAMPLES))
    assert len(set(t)) > 1
    best = loss.detach().sort(dim=0, descending=True).values[int(beta * SAMPLES)]
    at = torch.tensor(t if tail == "prl" else before, dtype=torch.float64)
    at = at.minimum(best) if tail == "prl" else at
    above = sum((loss[m] - at) * (loss[m] >= at) for m in range(SAMPLES)) / (beta * SAMPLES)
    expected = (above if tail == "prl" else at + above).sum() / COUNT
    agree(method(net, images, labels, draws).value, net, expected, other)


class Constant(nn.Module):
    """Logits that no noise changes: the loss of image i is a parameter of its own, `losses[i]`."""

    def __init__(self, losses):
        super().__init__()
        self.losses = nn.Parameter(losses)

    def forward(self, images):
        # CE of class 0 is log(1 + exp(other logit)).
        other = (self.losses.exp() - 1).clamp_min(1e-300).log()
        return torch.stack([torch.zeros_like(other), other], dim=1)


def gradient_of(losses, **params):
    """That of CVaR by losses that no noise changes."""
    net, count = Constant(losses), len(losses)
    images, labels = torch.rand(count, 1, 2, 2, dtype=torch.float64), torch.zeros(count, dtype=torch.int64)
    method = METHODS.build("cvar", samples=4, **params)
    method(net, images, labels, Draws(0, "test", torch.arange(count))).value.backward()
    return net.losses.grad


def test_every_loss_above_its_threshold_has_a_gradient():
    """A move past all losses of an image once left ranges of losses, such as 1 to 2, without one."""
    losses = torch.linspace(0.013, 6, 240, dtype=torch.float64)
    for step, beta in (("image", 0.5), ("image", 0.2), ("batch", 0.5), ("batch", 0.2)):
        found = gradient_of(losses, tail="prl", tail_step=step, beta=beta)
        assert torch.allclose(found, torch.tensor(1 / 240 / beta, dtype=torch.float64))
    default = METHODS.build("cvar")
    assert (default.tail, default.tail_step) == ("advbench", "batch")
    assert (gradient_of(losses)[losses > 1 + 4 / 240] > 0).all()
    equal = gradient_of(torch.tensor([0.5, 2.0], dtype=torch.float64), tail="exact")
    assert equal.tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("beta", [0.05, 0.3, 0.5, 0.9])
def test_the_exact_tail_differentiates_the_part_of_a_loss_that_lies_in_it(beta):
    """Where beta * SAMPLES is no whole number, of the threshold's own loss the rest counts."""
    images, labels, draws = batch()
    net, other = network(), network()
    ordered = losses_of(other, images, labels, draws, 0).sort(dim=0, descending=True).values
    whole = int(beta * SAMPLES)
    rest = beta * SAMPLES - whole
    worst = (ordered[:whole].sum(0) + rest * ordered[whole]) / (beta * SAMPLES)
    method = METHODS.build("cvar", eps=0.3, samples=SAMPLES, tail="exact", beta=beta)
    agree(method(net, images, labels, draws).value, net, worst.mean(), other)


def evar(values, a, q):
    top = max(values)
    return top + (math.log(sum(math.exp(a * (v - top)) for v in values) / (len(values) * q))) / a


@pytest.mark.parametrize("q", [0.5, 0.25, 0.9])
def test_evar_is_the_numeric_minimum_with_the_gradient_at_it(q):
    images, labels, draws = batch()
    net, other = network(), network()
    loss = losses_of(other, images, labels, draws, 0)
    value, best = 0.0, []
    for i in range(COUNT):
        own = loss[:, i].tolist()
        found = optimize.minimize_scalar(
            lambda s, own=own: evar(own, math.exp(s), q), bounds=(-7, 7), method="bounded"
        )
        value += found.fun / COUNT
        best.append(math.exp(found.x))
    method = METHODS.build("evar", eps=0.3, samples=SAMPLES, q=q)
    found = method(net, images, labels, draws).value
    assert found.item() == pytest.approx(value, abs=1e-7)
    found.backward()
    # The envelope: at the minimum each loss weighs as exp(a * loss).
    weights = torch.softmax(torch.tensor(best, dtype=torch.float64) * loss.detach(), dim=0)
    ((weights * loss).sum(0).mean()).backward()
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.allclose(mine.grad, theirs.grad, atol=1e-4)


@pytest.mark.parametrize(("noise", "std"), [("uniform", 0.5774), ("gaussian", 0.718), ("laplace", 0.727)])
def test_noise_is_clamped_to_the_ball_and_has_the_published_spread(noise, std):
    images = torch.full((100, 3, 10, 10), 0.5)
    unit = (noisy(images, Draws(0, "test", torch.arange(100)), noise, 0.1, "n") - images).flatten() / 0.1
    assert unit.abs().max() <= 1 + 1e-5
    assert unit.std().item() == pytest.approx(std, abs=0.01) and abs(unit.mean().item()) < 0.01
    inside = unit[unit.abs() < 0.999]
    at_border = 1 - len(inside) / len(unit)
    law = {"uniform": stats.uniform(-1, 2), "gaussian": stats.norm(), "laplace": stats.laplace()}[noise]
    assert at_border == pytest.approx(2 * law.cdf(-1), abs=0.01)
    below = law.cdf(0.5) - law.cdf(-0.5)
    assert (unit.abs() < 0.5).float().mean().item() == pytest.approx(below, abs=0.01)


def test_gaussian_augmentation_is_neither_clamped_nor_clipped():
    images, labels, draws = batch()
    net, other = network(), network()
    method = METHODS.build("corruption", noise="gaussian", sigma=0.5)
    noise = draws.child("noise").normal(tuple(images.shape[1:]))
    copies = method.inner_attack(net, images, labels, draws)
    assert torch.equal(copies, images + 0.5 * noise) and copies.max() > 1 > 0 > copies.min()
    logits = other(copies)
    rows = [z.exp().sum().log() - z[y] for z, y in zip(logits, labels, strict=True)]
    agree(method(net, images, labels, draws).value, net, sum(rows) / COUNT, other)
    assert METHODS.build("corruption", noise="laplace", sigma=0.5).unused.keys() == {"sigma", "gamma"}
    assert method.unused.keys() == {"eps", "scale", "gamma"}


def test_erm_dataaug_is_the_mean_cross_entropy_of_the_points():
    images, labels, draws = batch()
    net, other = network(), network()
    expected = losses_of(other, images, labels, draws, 0).mean()
    method = METHODS.build("erm-dataaug", eps=0.3, samples=SAMPLES)
    agree(method(net, images, labels, draws).value, net, expected, other)


def test_what_is_told_of_a_sampled_image_is_its_worst_point():
    images, labels, draws = batch()
    net = network()
    loss = losses_of(net, images, labels, draws, 0)
    told = METHODS.build("evar", eps=0.3, samples=SAMPLES)(net, images, labels, draws).adversarial_logits
    worst = [z.exp().sum().log() - z[y] for z, y in zip(told, labels, strict=True)]
    assert torch.allclose(torch.stack(worst), loss.amax(0))
