"""PGD and KL-PGD: adversarial training."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.registry import param
from rbtools.training.base import Adversarial


@dataclass(frozen=True, kw_only=True)
class PGDTraining(Adversarial):
    """Adversarial training (Madry et al. 2018, arXiv:1706.06083). The loss is CE(x').

    The point x' maximises the cross-entropy, starting at a uniform point in the ball. With `origin="image"`,
    a step starts from x and follows the gradient at the iterate. One step of the radius (`attack_steps=1`,
    `step_size` eps or more) is the FGSM training of PRBench's code (wellzline/PRBenchmark, fgsm_loss), x +
    eps * sign g. A step of twice the radius from the starting point ends at that point too, except for pixels
    where g is 0, which keep the values of the starting point.
    """

    name = "pgd"
    inner = "ce"
    start = "uniform"

    origin: str = param(
        "iterate",
        "The point that a step starts from: the iterate, or the image (PRBench's code with one step).",
        choices=("iterate", "image"),
        optional=True,
    )

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
