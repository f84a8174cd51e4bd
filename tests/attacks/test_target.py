"""The models that attacks accept: a user's own target, the mean over draws, a plain callable."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rbtools.attacks.losses import AttackObjective
from rbtools.attacks.pgd import PGD
from rbtools.attacks.target import Evaluated, Network, Target, as_target
from rbtools.evaluation.evaluate import evaluate

EPS = 24 / 255


def linear(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()


class Quantised(nn.Module):
    """A defence whose gradient is zero: pixels in 32 levels."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network((images * 31).round() / 31)  # type: ignore[no-any-return]


class Through(Network):
    """The defence, whose gradient is that of the network behind it (BPDA)."""

    def __init__(self, defence: Quantised) -> None:
        super().__init__(defence)
        self.behind = Network(defence.network)

    def loss_and_gradient(
        self, points: Tensor, objective: AttackObjective, *, everyone: bool = False
    ) -> Evaluated:
        correct = self.still_correct(points, objective.labels)
        kept = slice(None) if everyone else correct
        of_network = self.behind.loss_and_gradient(points, objective, everyone=True)
        return Evaluated(correct, of_network.loss[kept], of_network.gradient[kept])


def test_a_target_of_ones_own_breaks_a_defence_that_hides_its_gradient() -> None:
    torch.manual_seed(1)
    images = torch.rand(60, 1, 8, 8)
    defence = Quantised(linear(0)).eval()
    labels = defence(images).argmax(1)
    attack = PGD(eps=EPS, steps=5)

    def broken(target: object) -> int:
        return int((defence(attack(target, images, labels)).argmax(1) != labels).sum())

    assert isinstance(Through(defence), Target)
    assert broken(Through(defence)) > broken(defence) + 10
    # The network without the defence is as weak: the defence only hid the gradient.
    plain = evaluate(linear(0), (images, labels), PGD(eps=EPS, steps=5))
    assert abs((60 - broken(Through(defence))) / 60 - plain.value) < 0.15


def test_any_callable_is_a_target_and_a_target_stays_itself() -> None:
    network = as_target(linear(0))
    assert isinstance(network, Network) and as_target(network) is network
    assert network.logits(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
