"""IBP: certification by interval arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rbtools.certification.base import Certifier
from rbtools.lazy import Tensor

if TYPE_CHECKING:
    from rbtools.certification.ball import Ball
    from rbtools.certification.network import TracedNetwork


@dataclass(frozen=True, kw_only=True)
class IBP(Certifier):
    """Interval bound propagation (Gowal et al. 2018, arXiv:1810.12715): fast, and tight only for networks
    that were trained for it.

    Each layer's outputs are bounded by an interval each; the last linear layer bounds the margins. In L2
    the first layer is bounded by the norms of its rows.

    Shape: images float32 (N, C, H, W) in [0, 1], labels int64 (N,); the result is bool (N,), of
    `bounds` float64 (N,).
    """

    name = "ibp"

    def least_margins(self, traced: TracedNetwork, ball: Ball, labels: Tensor) -> Tensor:
        from rbtools.certification import linear_bounds

        return linear_bounds.interval_margins(linear_bounds.NetworkBounds(traced, ball).all(), labels)
