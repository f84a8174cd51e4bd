"""IBP training and CROWN-IBP: the cross-entropy of the worst logits that bounds allow."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.errors import RbError
from rbtools.lazy import Tensor, nn, torch
from rbtools.registry import param
from rbtools.training.base import LossTerms, Method, cross_entropy, mode, truth

if TYPE_CHECKING:
    from rbtools.certification.linear_bounds import NetworkBounds

_MIDDLE, _EXPONENT = 0.25, 4.0  # parameters of the smooth ramp


@dataclass(frozen=True, kw_only=True)
class IBPTraining(Method[None]):
    """IBP training (Gowal et al. 2018, arXiv:1810.12715; deepmind/interval-bound-propagation):
    kappa * CE(x) + (1 - kappa) * CE(z), where z are the worst logits of the L-infinity ball that interval
    bounds allow: 0 for the label, and for each other class minus the lower bound of the label's margin over
    it, with the last linear layer taken into the margin.

    eps is 0 for a first share of the training, which is standard training, and then grows to --eps; kappa
    falls with it, from 1 to --kappa-end. The defaults are the paper's on MNIST: 2,000 of 60,000 steps, then
    10,000. A BatchNorm scales the bounds by the statistics of the batch of x, with their gradient (as
    auto_LiRPA does); dropout drops the same values in both. The bounds are of images in [0, 1], in float32
    without a charge for its rounding.

    The history's robust_acc is the certified accuracy of these bounds at the current eps.
    """

    name = "ibp"
    inner = "bounds"
    follows_operations = True
    # the share of the training's steps that are done; `at` returns a copy with another
    done: ClassVar[float] = 1.0

    eps: float = param(8 / 255, "Radius of the L-infinity ball.", unit="eps", check="non-negative")
    kappa_end: float = param(
        0.5, "Weight of the clean cross-entropy when eps has its full size.", check="fraction"
    )
    eps_warmup: float = param(0.033, "Share of the training's steps at eps 0.", check="fraction")
    eps_ramp: float = param(
        0.167, "Share of the training's steps over which eps grows, after these.", check="fraction"
    )
    eps_shape: str = param(
        "linear",
        "How eps grows: linear, or smooth (a fourth power for the first quarter, then linear).",
        choices=("linear", "smooth"),
    )

    def __post_init__(self) -> None:
        if self.eps_warmup + self.eps_ramp > 1:
            raise RbError(
                f"eps_warmup + eps_ramp is {self.eps_warmup + self.eps_ramp:g}: eps would never reach its"
                " full size. Expected shares of the training that add up to 1 or less."
            )

    def at(self, done: float) -> IBPTraining:
        scheduled = copy.copy(self)
        object.__setattr__(scheduled, "done", done)
        return scheduled

    @property
    def share(self) -> float:
        """The share of eps, from 0 to 1, after the share `done` of the steps."""
        since = self.done - self.eps_warmup
        if since <= 0:
            return 0.0
        part = min(since / self.eps_ramp, 1.0) if self.eps_ramp else 1.0
        if self.eps_shape == "linear":
            return part
        # t^4 up to the middle, then the line that continues it with its slope there, scaled to end at 1.
        middle, height = _MIDDLE, _MIDDLE / _EXPONENT
        value = height * (part / middle) ** _EXPONENT if part < middle else height + part - middle
        return value / (height + 1 - middle)

    def check_network(self, model: nn.Module, shape: Sequence[int]) -> None:
        from rbtools.certification import network

        with mode(model, train=False):
            network.trace(model, shape, next(model.parameters()).device)

    def bound_passes(self, classes: int) -> int:
        return 2 if self.eps * self.share > 0 else 0  # one for the intervals' centres, one for their radii

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, inner_result: None) -> LossTerms:
        from rbtools.certification import linear_bounds, network
        from rbtools.certification.ball import Ball

        eps = self.eps * self.share
        if eps == 0:
            logits = model(images)
            return LossTerms(cross_entropy(logits, labels), clean=logits, adversarial=logits)
        with torch.autocast(images.device.type, enabled=False):  # intervals in bfloat16 are too coarse
            traced, logits = network.trace_batch(model, images)
            ball = Ball(images, eps, "linf", outward=False, dtype=logits.dtype)
            bounds = linear_bounds.NetworkBounds(traced, ball).all()
            margins = self.margins(bounds, truth(labels)).to(logits.dtype)
        others = linear_bounds.other_classes(truth(labels), logits.shape[1])
        worst = torch.zeros_like(logits).scatter(1, others, -margins)
        kappa = 1 - self.share * (1 - self.kappa_end)
        values = kappa * cross_entropy(logits, labels) + (1 - kappa) * cross_entropy(worst, labels)
        return LossTerms(values, logits, worst)

    def margins(self, bounds: NetworkBounds, labels: Tensor) -> Tensor:
        """Lower bounds (N, K - 1) of the margins, with their graph."""
        from rbtools.certification import linear_bounds

        return linear_bounds.interval_margins(bounds, labels)


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

    name = "crown-ibp"

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
