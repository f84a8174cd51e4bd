"""TRADES, a trade-off between clean accuracy and the distance of clean and adversarial outputs."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.lazy import Tensor, nn, torch
from rbtools.registry import param
from rbtools.training.base import Adversarial, LossTerms, cross_entropy, divergence


@dataclass(frozen=True, kw_only=True)
class TRADES(Adversarial):
    """TRADES (Zhang et al. 2019, arXiv:1901.08573; yaodongyu/TRADES). The loss is CE(x) + lambda * KL(p(x) ||
    p(x')).

    The point x' maximises the divergence, starting at x + 0.001 * N(0, 1). The divergence is a sum over
    classes and a mean over the batch, and its gradient flows into both arguments. The authors' code passes x
    through the network once more at the end; PRBench's code (wellzline/PRBenchmark, trades_loss) does not.
    """

    name = "trades"
    inner = "kl"
    start = "noise"

    lambda_: float = param(
        6.0, "Weight of the divergence.", name="lambda", check="non-negative", elsewhere="beta"
    )
    extra_pass: bool = param(
        True,
        "Pass x through the network again, for BatchNorm. The code of TRADES does this, and so does"
        " PRBench's paper; PRBench's code does not.",
        optional=True,
    )

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, inner_result: Tensor) -> LossTerms:
        # The authors' code runs x, x' and x again in training mode, so BatchNorm sees three separate batches;
        # a joint batch of x and x' would mix their statistics. The third pass gives the logits of the first
        # again: it only updates the running statistics, without a graph.
        clean = model(images)
        adversarial = model(inner_result)
        if self.extra_pass:
            with torch.no_grad():
                model(images)
        values = cross_entropy(clean, labels) + self.lambda_ * divergence(clean, adversarial)
        return LossTerms(values, clean, adversarial)
