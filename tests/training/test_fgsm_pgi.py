"""FGSM-PGI against its written-out steps over several epochs, and what it keeps of each example."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rbtools.errors import RbError
from rbtools.rng.draws import Draws
from rbtools.trainer.state import allocate_carried
from rbtools.training import METHODS
from rbtools.training.base import Method

EPS, ALPHA, DECAY, COUNT = 0.1, 0.75, 0.3, 6
SHAPE = (2, 4, 4)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(32, 8), nn.BatchNorm1d(8), nn.Softplus(), nn.Linear(8, 3))
    return layers.double().train()


def examples() -> tuple[Tensor, Tensor]:
    images = torch.rand(COUNT, *SHAPE, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return images, torch.arange(COUNT) % 3


def carrying(**options: Any) -> tuple[Method[Any], dict[str, Tensor]]:
    method = METHODS.build("fgsm-pgi", **{"eps": EPS, "alpha": ALPHA, "prior_decay": DECAY, **options})
    state = {name: torch.zeros(COUNT, *SHAPE, dtype=torch.float64) for name in method.carried}
    return method.carrying(state), state


def attack(method: Method[Any], net: nn.Module, epoch: int, ids: Tensor) -> Tensor:
    images, labels = examples()
    draws = Draws(3, "test", ids, offset=epoch)
    perturbed: Tensor = method.inner_attack(net, images[ids], labels[ids], draws).perturbed
    return perturbed


def random_start(epoch: int) -> Tensor:
    numbers = Draws(3, "test", torch.arange(COUNT), offset=epoch).child("prior").uniform(SHAPE)
    return EPS * (2 * numbers.double() - 1).sign()


def onto_ball(points: Tensor, images: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(points, images - EPS), images + EPS).clamp(0, 1)


def written_out(net: nn.Module, epochs: int, reset: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """(x + eta, x', the next eta) of each epoch, example by example."""
    frozen, (images, labels) = copy.deepcopy(net).eval(), examples()
    eta, momentum, found = torch.empty(0), torch.zeros_like(images), []
    for epoch in range(epochs):
        if epoch % reset == 0:
            eta, momentum = random_start(epoch), torch.zeros_like(images)
        start = (images + eta).requires_grad_(True)
        nn.functional.cross_entropy(frozen(start), labels, reduction="sum").backward()  # type: ignore[no-untyped-call]
        assert start.grad is not None
        for i, gradient in enumerate(start.grad):
            momentum[i] = gradient / gradient.abs().mean() + DECAY * momentum[i]
        start = start.detach()
        own = onto_ball(start + ALPHA * EPS * frozen_sign(net, start, labels), images)
        eta = onto_ball(start + ALPHA * EPS * momentum.sign(), images) - images
        found.append((start, own, eta))
    return found


def frozen_sign(net: nn.Module, points: Tensor, labels: Tensor) -> Tensor:
    points = points.clone().requires_grad_(True)
    values = nn.functional.cross_entropy(copy.deepcopy(net).eval()(points), labels, reduction="sum")
    return torch.autograd.grad(values, points)[0].sign()


@pytest.mark.parametrize("reset", [2, 40])
def test_steps_over_epochs_are_the_written_out_ones(reset: int) -> None:
    net = network()
    method, state = carrying(reset=reset)
    for epoch, (start, end, eta) in enumerate(written_out(net, 5, reset)):
        images, labels = examples()
        draws = Draws(3, "test", torch.arange(COUNT), offset=epoch)
        step = method.inner_attack(net, images, labels, draws)
        torch.testing.assert_close(step.start, start)
        torch.testing.assert_close(step.perturbed, end)
        torch.testing.assert_close(state["delta"], eta)
        assert (step.perturbed - images).abs().max() <= EPS + 1e-12
    assert net[2].num_batches_tracked == 0 and all(value.grad is None for value in net.parameters())


def test_what_is_kept_belongs_to_the_example() -> None:
    net = network()
    together, whole = carrying()
    apart, parts = carrying()
    for epoch in range(3):
        attack(together, net, epoch, torch.arange(COUNT))
        for ids in (torch.tensor([4, 1]), torch.tensor([0, 5, 3, 2])):
            attack(apart, net, epoch, ids)
    for name, values in whole.items():
        torch.testing.assert_close(parts[name], values)


@pytest.mark.parametrize("weight", [0.0, 10.0])
def test_loss_and_gradient_are_those_of_the_formula(weight: float) -> None:
    net, (images, labels) = network(), examples()
    other = copy.deepcopy(net)
    method = METHODS.build("fgsm-pgi", eps=EPS, lambda_=weight)
    loss = method(net, images, labels, Draws(3, "test", torch.arange(COUNT)))
    loss.value.backward()
    start = images + random_start(0)
    end = onto_ball(start + EPS * frozen_sign(other, start, labels), images)
    logits = [other(start), other(end)] if weight else [other(end)]
    expected = nn.functional.cross_entropy(logits[-1], labels)
    if weight:
        expected = expected + weight * nn.functional.mse_loss(logits[1], logits[0])
    expected.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loss.value, expected)
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    torch.testing.assert_close(net[2].running_var, other[2].running_var)


def test_rounding_to_float16_stays_in_the_ball() -> None:
    net, method = network(), METHODS.build("fgsm-pgi", eps=0.3)
    state = allocate_carried(method, COUNT, SHAPE, torch.device("cpu"))
    assert {values.dtype for values in state.values()} == {torch.float16}
    kept = method.carrying(state)
    attack(kept, net, 0, torch.arange(COUNT))
    images, labels = examples()
    following = kept.inner_attack(net, images, labels, Draws(3, "test", torch.arange(COUNT), offset=1))
    assert state["delta"].double().abs().max() > 0.3
    assert (following.start - images).abs().max() <= 0.3 + 1e-12


def test_memory_that_does_not_suffice_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RB_IMAGE_MEMORY", "1G")
    method = METHODS.build("fgsm-pgi")
    with pytest.raises(RbError, match=r"fgsm-pgi keeps 2\.3 GiB of 200000 images .* Use n-fgsm"):
        allocate_carried(method, 200_000, (3, 32, 32), torch.device("cpu"))
    assert allocate_carried(METHODS.build("pgd"), 200_000, (3, 32, 32), torch.device("cpu")) == {}
