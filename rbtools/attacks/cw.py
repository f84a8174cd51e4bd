"""CW within a ball: projected gradient steps on the margin loss of Carlini and Wagner."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks import losses
from rbtools.attacks.pgd import PGD
from rbtools.registry import param

if TYPE_CHECKING:
    from rbtools.attacks.active_examples import AttackBatch
    from rbtools.attacks.losses import AttackObjective


@dataclass(frozen=True, kw_only=True)
class CW(PGD):
    """PGD on the margin loss of Carlini and Wagner (2017, arXiv:1608.04644), which PRBench calls CW20.

    The attack increases the margin (the largest other logit minus z_y), up to kappa, inside the ball of
    radius eps. In all other respects the attack is the same as `pgd`. If there is a target, the attack
    increases z_t - z_y. The attack `cw-l2` instead searches for the nearest adversarial example.

    Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,).
    """

    name: ClassVar[str] = "cw"
    version: ClassVar[int] = 1

    kappa: float = param(
        50.0,
        "Margin at which the attack on an image stops. PRBench's code uses 2; its paper does not specify it.",
        check="non-negative",
    )

    @property
    def loss(self) -> str:  # type: ignore[override]
        return "margin" if self.target == "none" else "targeted-margin"

    def goal(self, batch: AttackBatch) -> AttackObjective:
        goal = super().goal(batch)
        if self.target == "none":
            return batch.goal(functools.partial(losses.margin, kappa=self.kappa))
        return batch.goal(losses.targeted_logit_margin, goal.targets)
