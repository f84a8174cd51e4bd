"""EVaR: the tightest exponential bound on the mean of the largest share of an image's losses."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rbtools.errors import RbError
from rbtools.lazy import Tensor, torch
from rbtools.registry import param
from rbtools.training.sampled import Sampled

_LARGEST_LOG = 7.0  # the search for log a is limited to [-7, 7]
_BISECTIONS = 40


@dataclass(frozen=True, kw_only=True)
class EVaR(Sampled):
    """Entropic value at risk of the losses around x: the infimum over a > 0 of log(E[exp(a * loss)] / q) / a.

    Here q is the mass of the tail, as in the usual definition (Ahmadi-Javid 2012). PRBench's equation 20, at
    its level rho, would divide by 1 - rho. EVaR lies between the CVaR of the same tail and the largest loss,
    and equals the largest loss if q is at most the share of one sample. The logarithm of a is optimised in
    [-7, 7] for each image and held constant while the loss is differentiated, which is exact at the minimum.
    """

    name = "evar"

    q: float = param(0.5, "The share of losses in the tail.", check="positive")

    def __post_init__(self) -> None:
        if self.q > 1:
            raise RbError(f"q of training method 'evar' is {self.q:g}. Expected 0 < q <= 1.")

    def risk(self, losses: Tensor) -> Tensor:
        a = best_exponent(losses.detach(), self.q).to(losses)
        return ((a * losses).logsumexp(0) - math.log(len(losses) * self.q)) / a


def best_exponent(losses: Tensor, q: float) -> Tensor:
    """The a (N,) with log a in [-7, 7] that minimises log(mean(exp(a * losses)) / q) / a, for losses (M, N).

    With K(a) = log mean exp(a * losses), the slope has the sign of a * K'(a) - K(a) + log q, which increases
    with a because its derivative is a * K''. Bisection finds its zero, in float64.
    """
    losses = losses.double()
    low = torch.full_like(losses[0], -_LARGEST_LOG)
    high = torch.full_like(low, _LARGEST_LOG)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        a = middle.exp()
        log_sum = (a * losses).logsumexp(0)
        k = log_sum - math.log(len(losses))
        k_slope = ((a * losses - log_sum).exp() * losses).sum(0)
        rising = a * k_slope - k + math.log(q) > 0
        low, high = torch.where(rising, low, middle), torch.where(rising, middle, high)
    return ((low + high) / 2).exp()
