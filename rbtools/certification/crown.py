"""CROWN: certification by linear bounds that are propagated backwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rbtools.certification.base import Certifier
from rbtools.lazy import Tensor, torch
from rbtools.registry import param

if TYPE_CHECKING:
    from rbtools.certification.ball import Ball
    from rbtools.certification.network import TracedNetwork


@dataclass(frozen=True, kw_only=True)
class CROWN(Certifier):
    """CROWN (Zhang et al. 2018, arXiv:1811.00866): linear bounds of every margin, through all layers back to
    the image.

    A ReLU whose sign is open is bounded by the line through its ends from above, and from below by 0 or by
    its input, whichever encloses the smaller area. The bounds of the ReLU's input come from linear bounds
    too, or with `intermediate=ibp` from intervals (CROWN-IBP, Zhang et al. 2020, arXiv:1906.06316),
    which is faster and looser.

    Shape: images float32 (N, C, H, W) in [0, 1], labels int64 (N,); the result is bool (N,), of
    `bounds` float64 (N,).
    """

    name = "crown"

    intermediate: str = param(
        "crown", "What bounds the layers between: crown or ibp.", choices=("crown", "ibp")
    )

    @property
    def alone(self) -> bool:
        return self.intermediate == "crown"

    def least_margins(self, traced: TracedNetwork, ball: Ball, labels: Tensor) -> Tensor:
        from rbtools.certification import linear_bounds

        last = len(traced.nodes) - 1
        rows = linear_bounds.margin_rows(labels, traced.nodes[last].shape[0])
        if self.intermediate == "ibp":
            return linear_bounds.NetworkBounds(traced, ball).all().lower(last, rows)
        least = [
            linear_bounds.crown_bounds(traced, ball.one(number)).lower(last, rows[number : number + 1])
            for number in range(len(ball))
        ]
        return torch.cat(least)
