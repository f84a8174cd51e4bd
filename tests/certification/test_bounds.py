"""Certificates are sound: no point of a ball contradicts them. They equal the papers' formulas."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rbtools.attacks import ATTACKS
from rbtools.certification import CERTIFIERS
from rbtools.certification.ball import Ball
from rbtools.certification.linear_bounds import NetworkBounds, crown_bounds
from rbtools.certification.network import trace
from rbtools.errors import RbError
from rbtools.models.cell_network import NASBench201Network
from rbtools.models.plain import VGG, SimpleCNN
from rbtools.models.resnet import ResNet
from rbtools.rng.draws import Draws
from tests.certification.networks import DrawnNetwork, drawn_images, points_in_ball

BOUNDS = ("ibp", "crown")  # methods that bound margins
METHODS = [
    pytest.param("ibp", {}, id="ibp"),
    pytest.param("crown", {}, id="crown"),
    pytest.param("crown", {"intermediate": "ibp"}, id="crown-ibp"),
]
EPS = {"linf": (0.5 / 255, 0.02), "l2": (0.02, 0.1)}


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    """The smallest margin (..., N) of logits (..., N, K)."""
    own = logits.gather(-1, labels.expand(logits.shape[:-1])[..., None])
    others = logits.scatter(-1, labels.expand(logits.shape[:-1])[..., None], -torch.inf)
    return (own[..., 0] - others.amax(-1)).double()


def logits_of(network: nn.Module, points: Tensor) -> Tensor:
    return network(points.flatten(0, 1)).unflatten(0, points.shape[:2])


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize(("name", "options"), METHODS)
def test_no_point_of_a_ball_has_a_smaller_margin_than_the_bound(
    name: str, options: dict[str, Any], norm: str
) -> None:
    for seed in range(12):
        network = DrawnNetwork(seed)
        images = drawn_images(network, 4, seed)
        labels = network(images).argmax(1)
        for eps in EPS[norm]:
            method = CERTIFIERS.build(name, eps=eps, norm=norm, **options)
            bound = method.bounds(network, images, labels)
            points = points_in_ball(images, eps, norm, 100, seed)
            assert (margins(logits_of(network, points), labels) >= bound).all(), (seed, eps)
            assert bound.shape == (4,) and bound.dtype == torch.float64
            assert (bound <= margins(network(images), labels)).all()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_no_certified_image_is_broken_by_an_attack_or_by_random_points(norm: str) -> None:
    """AutoAttack, which takes a second, on one of them; `bench/certify.py drawn` is the long form."""
    certified = 0
    for seed in range(10):
        network = DrawnNetwork(seed)
        images = drawn_images(network, 6, seed)
        labels = network(images).argmax(1)
        eps = EPS[norm][1]
        safe = CERTIFIERS.build("crown", eps=eps, norm=norm).bounds(network, images, labels) > 0
        attacks = [ATTACKS.build("pgd", steps=10, restarts=2, eps=eps, norm=norm)]
        if seed == 8 and norm == "linf":
            attacks.append(ATTACKS.build("aa", eps=eps))
        for attack in attacks:
            perturbed = attack(network, images, labels, Draws(seed, "attack", torch.arange(6)))
            survived = network(perturbed).argmax(1) == labels
            assert survived[safe].all(), (seed, attack.name)
        points = points_in_ball(images[safe], eps, norm, 1000, seed)
        assert (logits_of(network, points).argmax(-1) == labels[safe]).all(), seed
        certified += int(safe.sum())
    assert certified > 10  # else nothing was tested


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_bounds_of_every_node_hold_for_its_values(norm: str) -> None:
    for seed in range(8):
        network = DrawnNetwork(seed)
        image = drawn_images(network, 1, seed)
        eps = EPS[norm][1]
        traced = trace(network, network.shape, torch.device("cpu"))
        points = points_in_ball(image, eps, norm, 60, seed)[:, 0]
        for bounds in (
            NetworkBounds(traced, Ball(image, eps, norm)).all(),
            crown_bounds(traced, Ball(image, eps, norm)),
        ):
            values = [points.double()]
            for number, node in enumerate(traced.nodes[1:], 1):
                inputs = [bounds.values[0]._replace(lower=values[p], upper=values[p]) for p in node.parents]
                values.append(node.operation.interval(inputs).lower)
                lower, upper = bounds.values[number]
                assert ((lower <= values[-1]) & (values[-1] <= upper)).all(), (seed, number)
            torch.testing.assert_close(values[-1].float(), network(points), rtol=1e-4, atol=1e-5)


def test_of_an_affine_network_the_bounds_are_exact() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 3))
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(5, 1, 4, 4, generator=generator) * 0.6 + 0.2
    labels = network(images).argmax(1)
    jacobian = torch.autograd.functional.jacobian(network.double(), images[:1].double())[0, :, 0].flatten(1)
    clean = network(images.double())
    for norm, size in (("linf", 0.05), ("l2", 0.15)):
        for name in BOUNDS:
            bound = CERTIFIERS.build(name, eps=size, norm=norm).bounds(network.float(), images, labels)
            for i, label in enumerate(labels.tolist()):
                rows = jacobian[label] - jacobian
                dual = rows.abs().sum(1) if norm == "linf" else rows.norm(dim=1)
                exact = (clean[i, label] - clean[i] - size * dual)[torch.arange(3) != label].min()
                if norm == "linf" and name == "ibp":  # interval bounds between the layers are looser
                    assert bound[i] < exact
                elif name == "crown":
                    assert exact - 1e-4 < bound[i] < exact


def dense_crown(weights: list[tuple[Tensor, Tensor]], image: Tensor, eps: float, rows: Tensor) -> Tensor:
    """CROWN of a network of linear layers with ReLU between them, by matrices: bounds of rows @ logits.

    Written from Zhang et al. 2018 (arXiv:1811.00866), theorem 3.2, with their adaptive lower slope.
    """
    bounds: list[tuple[Tensor, Tensor]] = []

    def least(depth: int, rows: Tensor) -> Tensor:
        """Lower bounds of rows @ (the outputs of linear layer `depth`)."""
        constant = torch.zeros(len(rows), dtype=rows.dtype)
        for layer in range(depth, -1, -1):
            weight, bias = weights[layer]
            constant = constant + rows @ bias
            rows = rows @ weight
            if layer:
                low, high = bounds[layer - 1]
                slope = torch.where(high <= 0, 0.0, torch.where(low >= 0, 1.0, high / (high - low)))
                offset = torch.where((low < 0) & (high > 0), -slope * low, 0.0)
                flat = torch.where((low >= 0) | ((high > 0) & (high > -low)), 1.0, 0.0)
                constant = constant + rows.clamp_max(0) @ offset
                rows = rows.clamp_min(0) * flat + rows.clamp_max(0) * slope
        return constant + rows @ image - eps * rows.abs().sum(1)

    for depth, (weight, _) in enumerate(weights[:-1]):
        unit = torch.eye(len(weight), dtype=torch.float64)
        bounds.append((least(depth, unit), -least(depth, -unit)))
    return least(len(weights) - 1, rows)


def test_crown_equals_its_definition_by_matrices() -> None:
    generator = torch.Generator().manual_seed(3)
    sizes = (9, 12, 10, 8, 4)
    network = nn.Sequential(nn.Flatten())
    weights = []
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        layer = nn.Linear(inputs, outputs)
        layer.weight.data = torch.randn(outputs, inputs, generator=generator) / 3
        layer.bias.data = torch.randn(outputs, generator=generator) / 4
        network.append(layer)
        weights.append((layer.weight.detach().double(), layer.bias.detach().double()))
        if i < 3:
            network.append(nn.ReLU())
    images = torch.rand(6, 1, 3, 3, generator=generator) * 0.6 + 0.2
    labels = network(images).argmax(1)
    eps = 0.1
    method = CERTIFIERS.build("crown", eps=eps)
    bound = method.bounds(network, images, labels, outward=False)
    stated = method.bounds(network, images, labels)
    for i, label in enumerate(labels.tolist()):
        rows = torch.eye(4, dtype=torch.float64)[label] - torch.eye(4, dtype=torch.float64)
        exact = dense_crown(weights, images[i].flatten().double(), eps, rows)[torch.arange(4) != label].min()
        assert bound[i] == pytest.approx(float(exact), abs=2e-6)
        assert exact - 1e-3 < stated[i] < exact


@pytest.mark.parametrize("name", BOUNDS)
def test_at_distance_0_the_bound_is_the_margin_less_what_rounding_may_do(name: str) -> None:
    network = DrawnNetwork(5)
    images = drawn_images(network, 8)
    labels = network(images).argmax(1)
    bound = CERTIFIERS.build(name, eps=0.0).bounds(network, images, labels)
    clean = margins(network(images), labels)
    assert ((clean - 1e-3 < bound) & (bound < clean)).all()


def test_rounding_of_a_badly_conditioned_network_is_covered() -> None:
    """Its logits are small differences of large sums: float32 is wrong by more than the margin."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(200, 1, 8, 8, generator=generator)
    weight = torch.randn(64, generator=generator) * 1e4
    network[1].weight.data = torch.stack([weight, weight.flip(0)])
    network[1].bias.data = torch.zeros(2)
    images = (
        images + images.flatten(1).flip(1).view_as(images)
    ) / 2  # both logits are equal but for rounding
    labels = network(images).argmax(1)
    for name in BOUNDS:
        method = CERTIFIERS.build(name, eps=0.0)
        assert (method.bounds(network, images, labels) < 0).all()


def test_networks_of_the_suite_have_bounds() -> None:
    networks: dict[str, tuple[nn.Module, tuple[int, int, int]]] = {
        "cell": (NASBench201Network([0, 1, 2, 3, 4, 0], channels=2, cells=1, in_channels=1), (1, 8, 8)),
        "dead cell": (NASBench201Network([0] * 6, channels=2, cells=1, in_channels=1), (1, 8, 8)),
        "resnet": (ResNet([1, 1, 1, 1], classes=4, width=2), (3, 8, 8)),
        "vgg": (VGG([1, 1], [3, 4], classes=4), (3, 7, 7)),
        "simplecnn": (SimpleCNN(classes=3, shape=(1, 10, 10)), (1, 10, 10)),
    }
    for name, (network, shape) in networks.items():
        network = network.eval().requires_grad_(False)
        images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
        labels = network(images).argmax(1)
        bounds = [
            CERTIFIERS.build("ibp", eps=1e-4).bounds(network, images, labels),
            CERTIFIERS.build("crown", eps=1e-4, intermediate="ibp").bounds(network, images, labels),
        ]
        points = points_in_ball(images, 1e-4, "linf", 10)
        least = margins(logits_of(network, points), labels).amin(0)
        assert all((bound <= least).all() and bound.isfinite().all() for bound in bounds), name


class Reused(nn.Module):
    """A network that changes a tensor after it was used."""

    def forward(self, images: Tensor) -> Tensor:
        x = images.flatten(1)
        kept = x[:, :3]
        x.mul_(2)
        return kept + 1


class Conditional(nn.Module):
    """A network that decides on a value."""

    def forward(self, images: Tensor) -> Tensor:
        x = images.flatten(1)[:, :3]
        return x if float(x.sum()) > 1 else -x


class Mixing(nn.Module):
    """A network whose logits depend on the other images."""

    def forward(self, images: Tensor) -> Tensor:
        x = images.flatten(1)[:, :3]
        return x - x.mean(0, keepdim=True)


@pytest.mark.parametrize(
    ("network", "named"),
    [
        (nn.Sequential(nn.Flatten(), nn.GELU(), nn.Linear(16, 3)), "operation gelu"),
        (nn.Sequential(nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 3)), "operation native_layer_norm"),
        (nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(16, 3)).train(), "statistics of the batch"),
        (Reused(), "changes a tensor in place"),
        (Conditional(), "operation sum over several images"),
        (Mixing(), "over several images"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_network_without_bounds_is_refused_by_name(network: nn.Module, named: str) -> None:
    images = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    for name in BOUNDS:
        with pytest.raises(RbError, match=named):
            CERTIFIERS.build(name).bounds(network, images, torch.zeros(2, dtype=torch.long))


def test_in_place_relu_and_addition_are_followed() -> None:
    class InPlace(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            x = images.flatten(1)[:, :4] - 0.5
            y = F.relu(x * 2, inplace=True)
            y += x
            return y

    network, images = InPlace(), torch.rand(3, 1, 2, 4, generator=torch.Generator().manual_seed(0))
    labels = network(images).argmax(1)
    bound = CERTIFIERS.build("crown", eps=0.0).bounds(network, images, labels)
    assert bound.numpy() == pytest.approx(margins(network(images), labels).numpy(), abs=1e-4)


def test_a_view_of_what_an_in_place_relu_gave_is_followed() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8, 3))
    plain = nn.Sequential(network[0], nn.ReLU(), nn.Flatten(), network[3])
    images = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    labels = network(images).argmax(1)
    for name in BOUNDS:
        method = CERTIFIERS.build(name, eps=0.02)
        assert torch.equal(method.bounds(network, images, labels), method.bounds(plain, images, labels))
