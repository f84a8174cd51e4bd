"""CROWN: certification by linear bounds that are propagated backwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rbtools.certification.base import Certifier, ball_norm_param
from rbtools.lazy import Tensor, torch
from rbtools.registry import param


@dataclass(frozen=True, kw_only=True)
class CROWN(Certifier):
    """CROWN (Zhang et al. 2018, arXiv:1811.00866): linear bounds of every margin, through all layers back to
    the image.

    A ReLU whose sign is open is bounded by the line through its ends from above, and from below by 0 or by
    its input, whichever leaves less between. What that needs, the bounds of its input, comes from linear
    bounds too, or with `intermediate=ibp` from intervals (CROWN-IBP, Zhang et al. 2020, arXiv:1906.06316),
    which is faster and looser.

    Shape: images float32 (N, C, H, W) in [0, 1], labels int64 (N,); the result is bool (N,), of
    `bounds` float64 (N,).
    """

    name = "crown"

    eps: float = 8 / 255
    norm: str = ball_norm_param()
    intermediate: str = param(
        "crown", "What bounds the layers between: crown or ibp.", choices=("crown", "ibp")
    )

    @property
    def alone(self) -> bool:
        return self.intermediate == "crown"

    def bounds(
        self, model: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, *, outward: bool = True
    ) -> Tensor:
        from rbtools.certification import linear_bounds, network
        from rbtools.certification.ball import Ball

        traced = network.trace(model, images.shape[1:], images.device)
        ball = Ball(images, self.eps, self.norm, outward=outward)
        last, classes = len(traced.nodes) - 1, traced.nodes[-1].shape[0]
        rows = linear_bounds.margin_rows(labels, classes)
        if self.intermediate == "ibp":
            return linear_bounds.NetworkBounds(traced, ball).all().lower(last, rows).amin(1)
        least = [
            linear_bounds.crown_bounds(traced, ball.one(number)).lower(last, rows[number : number + 1])
            for number in range(len(ball))
        ]
        return torch.cat(least).amin(1)
