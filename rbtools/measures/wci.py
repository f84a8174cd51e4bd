"""Weight-Curvature Index: norm of the weights times curvature of the robust loss, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rbtools.lazy import nn, torch
from rbtools.measures import derivatives, layer_traces
from rbtools.measures.base import BatchResult, Measure, MeasureBatch, Value, standard_error
from rbtools.registry import param


@dataclass(frozen=True, kw_only=True)
class WCI(Measure):
    """Sum over layers of sqrt(squared Frobenius norm of the weight * trace of the Hessian).

    The Hessian is that of the mean cross-entropy on adversarial training images, held constant, with respect
    to the weight of a convolution or a linear layer (no biases, no BatchNorm). A layer's trace is estimated
    without the other layers' blocks (`layer_traces`); it is above 0 where logits are piecewise linear in the
    weight. A layer with a negative estimate counts as 0; the record has their number, and the standard error
    what they may hide.
    """

    name = "wci"
    version = 2
    random = True
    weights = "trained"
    plain = True
    less_is_better = True
    probes: int = param(20, "Random vectors for a trace.", check="positive")

    @property
    def attacks(self) -> int:
        return 1

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        """`layers`: names; `norms`: squared Frobenius norms; `traces`: a row of layers for each probe."""
        layers = derivatives.layers(model)
        names = list(layers.values())
        weights = derivatives.weights_of(model, names)
        norms = torch.stack([w.double().square().sum() for w in weights.values()]).tolist()
        rows = layer_traces.traces(model, batch.attacked, batch, names, self.probes)
        return {"layers": list(layers), "norms": norms, "traces": rows}

    def values(self, results: Sequence[BatchResult], sizes: Sequence[int]) -> list[Value]:
        """The index, and the trace of all layers; standard errors are over probes, the index' by jackknife.

        A layer's trace is that of the loss on all batches: means weighted by their sizes. To the error of the
        index a layer that counts as 0 adds what it would be with a trace of one standard error.
        """
        layers, norms = results[0]["layers"], results[0]["norms"]
        share = [size / sum(sizes) for size in sizes]
        # The estimate of each probe for each layer: (probes, layers).
        rows = [
            [
                sum(w * result["traces"][p][i] for w, result in zip(share, results, strict=True))
                for i in range(len(layers))
            ]
            for p in range(self.probes)
        ]
        total = [sum(column) for column in zip(*rows, strict=True)]
        traces = [value / self.probes for value in total]
        value = index(norms, traces)
        without = [
            index(norms, [(t - x) / (self.probes - 1) for t, x in zip(total, row, strict=True)])
            for row in rows
            if self.probes > 1
        ]
        errors = [standard_error(column) for column in zip(*rows, strict=True)]
        hidden = sum(
            norm * error
            for norm, trace, error in zip(norms, traces, errors, strict=True)
            if error is not None and trace <= 0
        )
        each = {
            name: {"norm2": norm, "trace": trace, **({} if error is None else {"se": error})}
            for name, norm, trace, error in zip(layers, norms, traces, errors, strict=True)
        }
        more = {"layers": each, "negative": sum(trace < 0 for trace in traces)}
        sums = [sum(row) for row in rows]
        trace = Value("trace", sum(sums) / self.probes, standard_error(sums), _over(self.probes))
        return [Value("", value, _index_error(without, hidden), _over(self.probes), more), trace]


def index(norms: Sequence[float], traces: Sequence[float]) -> float:
    """The index, from the squared Frobenius norm of each layer's weight and its trace of the Hessian."""
    return sum(math.sqrt(norm * max(trace, 0.0)) for norm, trace in zip(norms, traces, strict=True))


def _index_error(without: Sequence[float], hidden: float) -> float | None:
    """The standard error from the leave-one-probe-out values, and the squares that layers at 0 hide."""
    count = len(without)
    if count < 2:
        return None
    mean = sum(without) / count
    return math.sqrt((count - 1) / count * sum((x - mean) ** 2 for x in without) + hidden)


def _over(probes: int) -> str | None:
    return "probes" if probes > 1 else None
