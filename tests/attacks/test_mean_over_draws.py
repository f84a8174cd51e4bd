"""What attacks ask: randomised models, whose failure rates are known, and a user's own target."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rbtools.attacks import ATTACKS, lattice
from rbtools.attacks.losses import AttackObjective
from rbtools.attacks.oracle import Evaluated, Oracle
from rbtools.attacks.pgd import PGD
from rbtools.rng.draws import Draws
from rbtools.rng.foreign import RandomisedModel
from tests.networks import images_for, linear

EPS, SIGMA, N = 0.02, 0.3, 48


class Noisy(nn.Module):
    """Noise of SIGMA, then two logits that are linear in the image."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(192, 2)
        self.linear.weight.data.mul_(3)
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        return self.linear((images + SIGMA * torch.randn_like(images)).flatten(1))

    def margin(self, images: Tensor, labels: Tensor) -> Tensor:
        """The mean of the label's logit minus the other one (N,)."""
        weight, bias = (one[0] - one[1] for one in (self.linear.weight, self.linear.bias))
        return (images.flatten(1) @ weight + bias) * torch.where(labels == 0, 1.0, -1.0)


MODEL = Noisy()
IMAGES = torch.rand(N, 3, 8, 8, generator=torch.Generator().manual_seed(1)) * 0.5 + 0.25
LABELS = (MODEL.margin(IMAGES, torch.zeros(N, dtype=torch.int64)) < 0).long()
REACH = EPS * float((MODEL.linear.weight[0] - MODEL.linear.weight[1]).abs().sum())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fgsm", {}),
        *((name, {"steps": 8}) for name in ("pgd", "cw", "apgd-ce", "apgd-dlr")),
        ("aa", {"variant": "rand"}),
    ],
)
@pytest.mark.slow
def test_means_over_draws_reach_the_best_perturbation(name: str, options: dict[str, Any]) -> None:
    attack = ATTACKS.build(name, eps=EPS, eot=8, **options)
    torch.manual_seed(3)  # the model draws from torch's own generator
    points = attack(MODEL, IMAGES, LABELS)
    assert float((points - IMAGES).abs().max()) <= EPS + 1e-6
    # What the attack leaves out of the best one's change of the margin.
    left = MODEL.margin(points, LABELS) - (MODEL.margin(IMAGES, LABELS) - REACH)
    assert float((left / REACH).mean()) < 0.02


@pytest.mark.parametrize("name", ["pgd", "apgd-ce", "square", "fab"])
def test_no_point_depends_on_the_batch_or_the_chunk(name: str) -> None:
    attack = ATTACKS.build(name, eps=EPS, eot=4, **{"queries" if name == "square" else "steps": 5})

    def points(rows: slice, chunk: int | None) -> Tensor:
        target = Oracle(RandomisedModel(MODEL), chunk)
        draws = Draws(0, "attack", torch.arange(N)[rows])
        return lattice.run(attack, target, IMAGES[rows], LABELS[rows], draws)[0]

    whole = points(slice(0, 12), None)
    assert torch.allclose(points(slice(0, 12), 24), whole, atol=1e-6)
    assert torch.allclose(points(slice(5, 10), 3), whole[5:10], atol=1e-6)


class Quantised(nn.Module):
    """A defence whose gradient is zero: pixels in 32 levels."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network((images * 31).round() / 31)


class Through(Oracle):
    """The defence, whose gradient is that of the network behind it (BPDA)."""

    def __init__(self, defence: Quantised) -> None:
        super().__init__(defence)
        self.behind = Oracle(defence.network)

    def loss_and_gradient(
        self, points: Tensor, objective: AttackObjective, *, everyone: bool = False
    ) -> Evaluated:
        correct = self.still_correct(points, objective.labels)
        kept = slice(None) if everyone else correct
        of_network = self.behind.loss_and_gradient(points, objective, everyone=True)
        return Evaluated(correct, of_network.loss[kept], of_network.gradient[kept])


def test_a_target_of_ones_own_breaks_a_defence_that_hides_its_gradient() -> None:
    images, defence = images_for(60, (1, 8, 8)), Quantised(linear((1, 8, 8)))
    labels = defence(images).argmax(1)
    hidden, through = (
        (defence(PGD(eps=24 / 255, steps=5)(target, images, labels)).argmax(1) != labels).sum()
        for target in (defence.eval(), Through(defence))
    )
    assert through > hidden + 10
