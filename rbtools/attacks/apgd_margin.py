"""APGD on the margin that returns its best points: the screen of two-phase attacks in L1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks import apgd, losses
from rbtools.attacks.apgd_ce import APGDCE

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_batch import AttackBatch
    from rbtools.attacks.target import Network


@dataclass(frozen=True, kw_only=True)
class APGDMargin(APGDCE):
    """Auto-PGD on the margin, max of the other logits - z_y; in L1 l1-APGD (see `apgd-ce`).

    An unbroken example comes back as the point of its largest loss in the ball, not as the image: its margin
    there says how near it is to being broken. It is not registered: `rb-attack apgd-dlr` scales this loss.

    Shape: images float32 (N, C, H, W) in [0, 1], labels int64 (N,); the result is as images.
    """

    name: ClassVar[str] = "apgd-margin"
    version: ClassVar[int] = 1
    loss: ClassVar[str] = "margin"

    def _climb(self, restart: int, model: Network, batch: AttackBatch, more: bool) -> tuple[Tensor, Tensor]:
        return apgd.apgd(
            model,
            batch,
            batch.goal(losses.margin),
            eps=self.eps,
            norm=self.norm,
            count=self.steps,
            draw=restart,
            keep_best=True,
        )
