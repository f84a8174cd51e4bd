"""IBP training and CROWN-IBP: losses and gradients compared with matrix formulas, and the ramp of eps."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rbtools.certification import CERTIFIERS
from rbtools.errors import RbError
from rbtools.rng.draws import Draws
from rbtools.training import METHODS

EPS = 0.05


def network(seed: int = 0) -> nn.Sequential:
    """Two linear layers with BatchNorm between them, in float64 and training mode."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    net[2].weight.data.uniform_(0.5, 1.5)
    net[2].bias.data.uniform_(-0.3, 0.3)
    return net.double().train()


def batch(count: int = 7) -> tuple[Tensor, Tensor, Draws]:
    generator = torch.Generator().manual_seed(5)
    images = torch.rand(count, 1, 3, 4, generator=generator, dtype=torch.float64)
    return images, torch.arange(count) % 3, Draws(3, "test", torch.arange(count))


def written_out(net: nn.Sequential, images: Tensor, labels: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Bounds of the margins (N, 2) by intervals and by CROWN-IBP, image by image and class by class."""
    low, high = (images - eps).clamp(0, 1).flatten(1), (images + eps).clamp(0, 1).flatten(1)
    _, first, norm, _, last = net
    hidden = first(images.flatten(1))
    scale = norm.weight / (hidden.var(0, correction=0) + norm.eps).sqrt()
    weight = first.weight * scale[:, None]
    bias = (first.bias - hidden.mean(0)) * scale + norm.bias
    intervals, linear = [], []
    for i, label in enumerate(labels.tolist()):
        lower = weight.clamp(min=0) @ low[i] + weight.clamp(max=0) @ high[i] + bias
        upper = weight.clamp(min=0) @ high[i] + weight.clamp(max=0) @ low[i] + bias
        for other in (k for k in range(3) if k != label):
            row, shift = last.weight[label] - last.weight[other], last.bias[label] - last.bias[other]
            least = torch.where(row > 0, row * lower.clamp(min=0), row * upper.clamp(min=0)).sum()
            intervals.append(least + shift)
            coefficients, constant = [], shift
            for j in range(6):
                down, up = lower[j], upper[j]
                if down >= 0:
                    slope, offset = 1.0, 0.0
                elif up <= 0:
                    slope, offset = 0.0, 0.0
                elif row[j] > 0:
                    slope, offset = (1.0 if up > -down else 0.0), 0.0
                else:
                    slope, offset = up / (up - down), -up * down / (up - down)
                coefficients.append(row[j] * slope)
                constant = constant + row[j] * offset
            rows = torch.stack(coefficients) @ weight
            constant = constant + torch.stack(coefficients) @ bias
            linear.append(constant + rows.clamp(min=0) @ low[i] + rows.clamp(max=0) @ high[i])
    return torch.stack(intervals).view(-1, 2), torch.stack(linear).view(-1, 2)


def written_loss(
    net: nn.Sequential, images: Tensor, labels: Tensor, eps: float, kappa: float, beta: float
) -> Tensor:
    intervals, linear = written_out(net, images, labels, eps)
    margins = beta * linear + (1 - beta) * intervals
    clean = net(images)
    robust = (1 + (-margins).exp().sum(1)).log().mean()
    log_p = clean - clean.exp().sum(1, keepdim=True).log()
    plain = -torch.stack([log_p[i, label] for i, label in enumerate(labels)]).mean()
    return kappa * plain + (1 - kappa) * robust


CASES = [
    # name, options, share of the steps done, eps, kappa, beta
    ("ibp", {}, 1.0, EPS, 0.5, 0.0),
    ("ibp", {"kappa_end": 0.2, "eps_warmup": 0.2, "eps_ramp": 0.4}, 0.4, EPS / 2, 0.6, 0.0),
    ("crown-ibp", {}, 1.0, EPS, 0.0, 0.0),
    ("crown-ibp", {"beta_end": 1.0}, 1.0, EPS, 0.0, 1.0),
    (
        "crown-ibp",
        {"kappa_end": 0.5, "beta_end": 0.2, "eps_warmup": 0.0, "eps_ramp": 1.0},
        0.25,
        EPS / 4,
        0.875,
        0.8,
    ),
]


@pytest.mark.parametrize(("name", "options", "done", "eps", "kappa", "beta"), CASES)
def test_loss_and_gradient_are_those_written_out(
    name: str, options: dict[str, Any], done: float, eps: float, kappa: float, beta: float
) -> None:
    net, (images, labels, draws) = network(), batch()
    other = copy.deepcopy(net)
    expected = written_loss(other, images, labels, eps, kappa, beta)
    expected.backward()
    loss = METHODS.build(name, eps=EPS, **options).at(done)(net, images, labels, draws)
    loss.value.backward()
    assert loss.value.item() == pytest.approx(expected.item(), rel=1e-6)
    for own, written in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(own.grad, written.grad, rtol=1e-5, atol=1e-7)
    assert torch.equal(net[2].running_mean, other[2].running_mean)  # one pass in training mode
    assert torch.equal(net[2].running_var, other[2].running_var)


@pytest.mark.parametrize("name", ["ibp", "crown-ibp"])
def test_before_the_ramp_it_is_standard_training(name: str) -> None:
    net, (images, labels, draws) = network(), batch()
    loss = METHODS.build(name, eps=EPS, eps_warmup=0.5).at(0.5)(net, images, labels, draws)
    expected = METHODS.build("erm")(network(), images, labels, draws)
    assert loss.value.item() == expected.value.item()


def test_eps_grows_after_the_warm_up_and_reaches_its_full_size() -> None:
    method = METHODS.build("ibp", eps=EPS, eps_warmup=0.2, eps_ramp=0.4)
    shares = [method.at(done).share for done in (0.0, 0.2, 0.3, 0.4, 0.6, 1.0)]
    assert shares == pytest.approx([0, 0, 0.25, 0.5, 1, 1])
    assert METHODS.build("ibp", eps_warmup=0.0, eps_ramp=0.0).at(0.01).share == 1


def test_the_smooth_ramp_is_a_fourth_power_and_the_line_that_continues_it() -> None:
    method = METHODS.build("ibp", eps_warmup=0.0, eps_ramp=1.0, eps_shape="smooth")
    share = lambda done: method.at(done).share  # noqa: E731
    assert share(0.1) == pytest.approx(share(0.2) / 16)
    before, after = ((share(0.25 + step) - share(0.25)) / step for step in (-1e-6, 1e-6))
    assert before == pytest.approx(after, rel=1e-4)
    assert share(0.75) - share(0.5) == pytest.approx(share(0.5) - share(0.25))
    assert share(0.0) == 0 and share(1.0) == 1


def test_passes_of_the_bounds_follow_the_schedule() -> None:
    at = (0.1, 0.3, 0.9)  # before, during and after the ramp
    passes = {
        name: [
            METHODS.build(name, eps_warmup=0.2, eps_ramp=0.4, **more).at(done).bound_passes(3) for done in at
        ]
        for name, more in (("ibp", {}), ("crown-ibp", {"beta_end": 0.0}))
    }
    assert passes == {"ibp": [0, 2, 2], "crown-ibp": [0, 4, 2]}
    linear = METHODS.build("crown-ibp", eps_warmup=0.2, eps_ramp=0.4, beta_end=1.0)
    assert linear.at(0.9).bound_passes(3) == 4
    assert METHODS.build("ibp", eps=0.0).bound_passes(3) == METHODS.build("erm").bound_passes(3) == 0


@pytest.mark.parametrize("name", ["ibp", "crown-ibp"])
def test_a_ramp_that_never_ends_is_refused(name: str) -> None:
    with pytest.raises(RbError, match=r"eps_warmup \+ eps_ramp is 1.2"):
        METHODS.build(name, eps_warmup=0.7, eps_ramp=0.5)


@pytest.mark.parametrize(
    ("name", "options", "certifier", "more"),
    [
        ("ibp", {}, "ibp", {}),
        ("crown-ibp", {"beta_end": 1.0}, "crown", {"intermediate": "ibp"}),
    ],
)
def test_its_margins_are_those_of_the_certificates(
    name: str, options: dict[str, Any], certifier: str, more: dict[str, Any]
) -> None:
    """In eval mode the history and rb-certify count the same images, except for the bound of rounding
    errors."""
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.AvgPool2d(2),
        nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 3),
    ).eval()  # fmt: skip
    images = torch.rand(40, 1, 4, 4)
    labels = net(images).argmax(1)
    loss = METHODS.build(name, eps=0.02, **options)(net, images, labels, Draws(0, "t", torch.arange(40)))
    bound = CERTIFIERS.build(certifier, eps=0.02, **more).bounds(net, images, labels, outward=False)
    assert loss.adversarial_logits is not None
    torch.testing.assert_close(-loss.adversarial_logits.amax(1).clamp_min(0), bound.float().clamp_max(0))
    certified = loss.adversarial_logits.argmax(1) == labels
    assert torch.equal(certified, bound > 0) and 0 < int(certified.sum()) < 40


def test_dropout_drops_the_same_values_in_the_bounds() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, 3)).double().train()
    images, labels, draws = batch()
    for name, options in (("ibp", {}), ("crown-ibp", {"beta_end": 1.0})):
        torch.manual_seed(2)
        loss = METHODS.build(name, eps=EPS, kappa_end=0.0, **options)(net, images, labels, draws)
        torch.manual_seed(2)
        kept = nn.functional.dropout(torch.ones(7, 12, dtype=torch.float64), 0.5)
        rows = net[2].weight[labels][:, None] - net[2].weight
        shift = net[2].bias[labels][:, None] - net[2].bias
        low, high = (images - EPS).clamp(0, 1).flatten(1), (images + EPS).clamp(0, 1).flatten(1)
        rows = rows * kept[:, None]
        least = (rows.clamp(min=0) * low[:, None] + rows.clamp(max=0) * high[:, None]).sum(2) + shift
        expected = (-least).exp().sum(1).log().mean()
        assert loss.value.item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_network_without_bounds_is_refused_by_name() -> None:
    images, labels, draws = batch()
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.GELU(), nn.Linear(4, 3)).double()
    with pytest.raises(RbError, match="operation gelu"):
        METHODS.build("ibp")(net, images, labels, draws)


def test_the_configuration_names_the_options_alone() -> None:
    from rbtools import registry

    config = registry.config(METHODS.build("crown-ibp"))
    assert sorted(config) == ["beta_end", "eps", "eps_ramp", "eps_shape", "eps_warmup", "kappa_end"]
