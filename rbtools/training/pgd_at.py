"""PGD and KL-PGD: adversarial training."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rbtools import attacks
from rbtools.lazy import Tensor, nn, torch
from rbtools.registry import param
from rbtools.rng.draws import Draws
from rbtools.training.base import Adversarial, mode, truth


@dataclass(frozen=True, kw_only=True)
class PGDTraining(Adversarial):
    """Adversarial training (Madry et al. 2018, arXiv:1706.06083). The loss is CE(x').

    The point x' maximises the cross-entropy, starting at a uniform point in the ball. With `origin="image"`,
    a step starts from x and follows the gradient at the iterate. One step of the radius (`attack_steps=1`,
    `step_size` eps or more) is the FGSM training of PRBench's code (wellzline/PRBenchmark, fgsm_loss), x +
    eps * sign g. A step of twice the radius from the starting point ends at that point too, except for pixels
    where g is 0, which keep the values of the starting point.

    With `attack`, the inner attack searches in a threat other than the ball. In a family of transformations,
    it takes the worst of `attack_steps` random points (Engstrom et al. 2019, arXiv:1712.02779); other attacks
    make `attack_steps` steps or queries. An example whose attack succeeds early is not attacked further.
    """

    name = "pgd"
    inner = "ce"
    start = "uniform"

    origin: str = param(
        "iterate",
        "The point from which a step starts: the iterate, or the image as in PRBench's code with one step.",
        choices=("iterate", "image"),
        optional=True,
    )
    attack: str = param(
        "",
        "Attack in a threat other than the ball. Its name and settings are written as in metrics:"
        " spatial.30.3, patch.0.05, color.hue.0.1 ...",
        metavar="NAME",
        optional=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attack:
            attacks.named(self.attack).shortened(self.attack_steps)

    @property
    def unused(self) -> dict[str, str]:
        return dict.fromkeys(("eps", "step_size", "origin"), f"--attack {self.attack}") if self.attack else {}

    @property
    def reach(self) -> float:
        return math.inf if self.attack else super().reach

    @property
    def single_step(self) -> bool:
        return super().single_step and not self.attack

    def perturb(self, model: nn.Module, images: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        if not self.attack:
            return super().perturb(model, images, labels, draws)
        from rbtools.attacks.oracle import Oracle  # --help does not need it

        attack = attacks.named(self.attack).shortened(self.attack_steps)
        with torch.no_grad(), mode(model, train=self.inner_mode == "train"):
            points, _ = attack.run(Oracle(model), images, truth(labels), draws)
            return attack.threat.made(attack.threat.project(points, images), images)

    @property
    def from_image(self) -> bool:
        return self.origin == "image"


@dataclass(frozen=True, kw_only=True)
class KLPGD(PGDTraining):
    """KL-PGD (PRBench, table 2). The loss is CE(x').

    The point x' maximises the divergence KL(p(x) || p(x')), starting at x + 0.001 * N(0, 1), as in TRADES.
    The attack does not use the labels.
    """

    name = "kl-pgd"
    inner = "kl"
    start = "noise"
