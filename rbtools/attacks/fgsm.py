"""FGSM: one step along the sign of the gradient to the border of the ball."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks import steps
from rbtools.attacks.drive import SteppedAttack

if TYPE_CHECKING:
    from rbtools.attacks.drive import Iterate
    from rbtools.attacks.oracle import Evaluated


@dataclass(frozen=True, kw_only=True)
class FGSM(SteppedAttack):
    """Fast gradient sign method (Goodfellow et al. 2015, arXiv:1412.6572), L-infinity.

    The result is x + eps * sign(gradient of the cross-entropy), clipped to [0, 1]. There is no random start.

    Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,).
    """

    name: ClassVar[str] = "fgsm"
    version: ClassVar[int] = 1
    mean_of: ClassVar[str] = "loss"
    loss: ClassVar[str] = "ce"
    random: ClassVar[bool] = False
    clean_pass: ClassVar[bool] = False
    single_step: ClassVar[bool] = True
    steps: ClassVar[int] = 1  # type: ignore[misc]
    any_counts: ClassVar[bool] = False

    eps: float = 8 / 255

    def tell(self, state: Iterate, seen: Evaluated, step: int) -> None:
        state.points = steps.ascend(state.images, seen.gradient, self.eps, "linf").clamp_(0, 1)
