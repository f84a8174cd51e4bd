"""IBP: certification by interval arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rbtools.certification.base import Certifier, ball_norm_param
from rbtools.lazy import Tensor


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

    eps: float = 8 / 255
    norm: str = ball_norm_param()

    def bounds(
        self, model: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, *, outward: bool = True
    ) -> Tensor:
        from rbtools.certification import linear_bounds, network
        from rbtools.certification.ball import Ball

        traced = network.trace(model, images.shape[1:], images.device)
        ball = Ball(images, self.eps, self.norm, outward=outward)
        bounds = linear_bounds.NetworkBounds(traced, ball).all()
        return linear_bounds.interval_margins(bounds, labels).amin(1)
