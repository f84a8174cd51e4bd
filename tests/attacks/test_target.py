"""A user's own target, through which attacks ask a model."""

from __future__ import annotations

from torch import Tensor, nn

from rbtools.attacks.losses import AttackObjective
from rbtools.attacks.pgd import PGD
from rbtools.attacks.target import Evaluated, Network, Target
from tests.networks import images_for, linear


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
    images, defence = images_for(60, (1, 8, 8)), Quantised(linear((1, 8, 8)))
    labels = defence(images).argmax(1)
    hidden, through = (
        (defence(PGD(eps=24 / 255, steps=5)(target, images, labels)).argmax(1) != labels).sum()
        for target in (defence.eval(), Through(defence))
    )
    assert isinstance(Through(defence), Target) and through > hidden + 10
