"""CROWN-IBP: training on linear bounds whose intermediate bounds are intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.registry import param
from rbtools.training.ibp_training import IBPTraining

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.certification.linear_bounds import NetworkBounds


@dataclass(frozen=True, kw_only=True)
class CROWNIBP(IBPTraining):
    """CROWN-IBP (Zhang et al. 2020, arXiv:1906.06316; huanzhang12/CROWN-IBP): as ibp, with the margins
    beta * CROWN-IBP's + (1 - beta) * the intervals'.

    CROWN-IBP's are linear bounds back to the image with intermediate bounds from intervals; the lower line of
    a ReLU is the one that leaves less between. beta falls with eps, from 1 to --beta-end, and kappa from 1 to
    --kappa-end. The defaults are those of the paper's network dm-large on CIFAR-10 at 8/255: 320 of 3,200
    epochs at eps 0, then 1,600, kappa and beta to 0; there --eps-shape is smooth, and the training's eps 1.1
    times the one that is certified.
    """

    name: ClassVar[str] = "crown-ibp"
    version: ClassVar[int] = 1

    kappa_end: float = param(
        0.0, "Weight of the clean cross-entropy when eps has its full size.", check="fraction"
    )
    eps_warmup: float = param(0.1, "Share of the training's steps at eps 0.", check="fraction")
    eps_ramp: float = param(
        0.5, "Share of the training's steps over which eps grows, after these.", check="fraction"
    )
    beta_end: float = param(
        0.0, "Weight of CROWN-IBP's bounds, against intervals, when eps has its full size.", check="fraction"
    )

    @property
    def share_of_linear(self) -> float:
        """The weight of the linear bounds now."""
        return 1 - self.share * (1 - self.beta_end)

    def bound_passes(self, classes: int) -> int:
        intervals = super().bound_passes(classes)
        margins = classes - 1 if intervals and self.share_of_linear else 0
        return intervals + margins

    def margins(self, bounds: NetworkBounds, labels: Tensor) -> Tensor:
        from rbtools.certification import linear_bounds

        beta, intervals = self.share_of_linear, super().margins(bounds, labels)
        if beta == 0:
            return intervals
        last = len(bounds.network.nodes) - 1
        rows = linear_bounds.margin_rows(labels, bounds.network.nodes[last].shape[0])
        linear = bounds.lower(last, rows.to(bounds.ball.images.dtype))
        return beta * linear + (1 - beta) * intervals
