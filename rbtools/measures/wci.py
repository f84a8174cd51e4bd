"""Weight-Curvature Index: norm of the weights times curvature of the robust loss, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rbtools.lazy import Tensor, nn, torch
from rbtools.measures import derivatives
from rbtools.measures.base import BatchResult, Measure, MeasureBatch, Value, standard_error
from rbtools.measures.derivatives import Weights
from rbtools.registry import param
from rbtools.rng.draws import Draws

_LOOKED_AT = 8  # number of images on which linearity is tested
# share of the gradient: far above rounding errors, far below the second derivatives of smooth activations
_LINEAR = 1e-4
_GROUP = 32  # images per estimate: half as many halve the variance, but make the passes smaller
_KEPT = 2**26  # the most gradient values kept in memory for a group in several chunks: 256 MiB in float32


@dataclass(frozen=True, kw_only=True)
class WCI(Measure):
    """Sum over layers of sqrt(squared Frobenius norm of the weight * trace of the Hessian).

    The Hessian of the mean cross-entropy on adversarial training images, which are held constant, is taken
    with respect to the weight of a convolution or a linear layer (no biases, no BatchNorm). The trace of a
    layer is estimated without the blocks of the other layers (`traces`). The trace is never negative if the
    logits are piecewise linear in the weight. A layer with a negative estimate counts as 0. The record
    contains the number of such layers, and the standard error includes their possible contribution.
    """

    name = "wci"
    version = 2
    random = True
    weights = "trained"
    plain = True
    less_is_better = True
    attacks = 1
    probes: int = param(20, "Number of random vectors for a trace.", check="positive")

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        """Returns the names of the layers, the squared Frobenius norms of their weights, and `traces`, a row
        for each random vector with one number per layer."""
        layers = derivatives.layers(model)
        names = list(layers.values())
        weights = derivatives.weights_of(model, names)
        norms = torch.stack([w.double().square().sum() for w in weights.values()]).tolist()
        rows = traces(model, batch.attacked, batch, names, self.probes)
        return {"layers": list(layers), "norms": norms, "traces": rows}

    def values(self, results: Sequence[BatchResult], sizes: Sequence[int]) -> list[Value]:
        """The index, and the sum of the traces of all layers, with standard errors over random vectors (that
        of the index by the jackknife).

        A layer's trace is the mean of the batches' traces, weighted by their sizes. A layer that counts as 0
        adds to the standard error of the index what it would contribute if its trace were one standard error.
        """
        layers, norms = results[0]["layers"], results[0]["norms"]
        share = [size / sum(sizes) for size in sizes]
        # The estimates, for each probe and layer: (probes, layers).
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
        over = "probes" if self.probes > 1 else None
        trace = Value("trace", sum(sums) / self.probes, standard_error(sums), over)
        return [Value("", value, _index_error(without, hidden), over, more), trace]


def index(norms: Sequence[float], traces: Sequence[float]) -> float:
    """The index, computed from each layer's squared Frobenius norm of the weight and trace of the Hessian."""
    return sum(math.sqrt(norm * max(trace, 0.0)) for norm, trace in zip(norms, traces, strict=True))


def _index_error(without: Sequence[float], hidden: float) -> float | None:
    """The standard error, from jackknife values and the squared possible contributions of layers set to 0."""
    count = len(without)
    if count < 2:
        return None
    mean = sum(without) / count
    return math.sqrt((count - 1) / count * sum((x - mean) ** 2 for x in without) + hidden)


def traces(
    model: nn.Module, images: Tensor, batch: MeasureBatch, names: Sequence[str], count: int
) -> list[list[float]]:
    """Unbiased estimates of the trace of each weight's block of the Hessian of the mean cross-entropy on
    `images` (N, C, H, W). Returns `count` independent rows with one number for each of `names`.

    The logits may be piecewise linear in a weight, as with ReLU, pooling and BatchNorm's running statistics.
    The trace of its block is then the mean over images of the trace of J' C J, where J is the Jacobian of an
    image's logits with respect to the weight, and C = diag(p) - p p' is the Hessian of the cross-entropy with
    respect to the logits. The trace of J' C J needs no second derivative. One backward pass gives estimates
    for all such layers at once; the blocks of the Hessian between two layers are ignored. Each of the other
    layers has its own random vectors.
    """
    curved = _curved(model, images[:_LOOKED_AT], batch.probes.child("linear"), names)
    linear = [name for name in names if name not in curved]
    estimates: dict[str, list[float]] = {}
    if linear:
        rows = _linear_traces(model, images, batch, linear, count)
        estimates |= dict(zip(linear, map(list, zip(*rows, strict=True)), strict=True))
    for name in curved:
        hessian = derivatives.WeightHessian(model, images, batch.labels, batch.chunk, [name])
        estimates[name] = [row[0] for row in hessian.traces(batch.probes.child(name), count)]
    return [list(row) for row in zip(*(estimates[name] for name in names), strict=True)]


def _curved(model: nn.Module, images: Tensor, draws: Draws, names: Sequence[str]) -> list[str]:
    """The weights in which the logits of these few images are not piecewise linear, or are not finite. If
    they are piecewise linear in a weight tensor, all their second derivatives are 0 up to rounding. A random
    combination of the logits and a random direction of the tensor are tested."""
    logits = derivatives.logits_of(model, images)
    straight = []
    with derivatives.differentiating():
        outputs = logits({})
        signs = derivatives.rademacher(draws.child("logits"), outputs.numel(), 0)[0].view_as(outputs)

        def combined(weights: Weights) -> Tensor:
            return (signs * logits(weights)).sum()

        for name, weight in derivatives.weights_of(model, names).items():
            gradient, transposed, *_ = torch.func.vjp(torch.func.grad(combined), {name: weight})
            direction = derivatives.rademacher(draws, weight.numel(), 0)[0].view_as(weight).to(weight.dtype)
            bend = transposed({name: direction})[0][name].norm() * weight.norm()
            straight.append(bend <= _LINEAR * gradient[name].norm() * direction.norm())
        linear = torch.stack(straight).tolist()
    return [name for name, is_straight in zip(names, linear, strict=True) if not is_straight]


def _linear_traces(
    model: nn.Module, images: Tensor, batch: MeasureBatch, names: Sequence[str], count: int
) -> list[list[float]]:
    """Estimates of the traces for piecewise linear logits: `count` rows with a number for each weight.

    An estimate is the sum over groups of |sum over a group's images of J' S u|^2 / N, where u are independent
    random signs (N, K), and S = diag(sqrt p) - p sqrt(p)', so that S S' = C.
    """
    weights = derivatives.weights_of(model, names)
    size = sum(value.numel() for value in weights.values())
    signs, rows = batch.draws.child("trace"), torch.arange(len(images), device=images.device)
    estimates = []
    with derivatives.differentiating():
        for group in rows.split(_GROUP):
            parts = group.split(batch.chunk)
            at_once = count if len(parts) == 1 else max(1, _KEPT // size)
            for first in range(0, count, at_once):
                numbers = range(first, min(first + at_once, count))
                sums: dict[int, Weights] = {}
                for part in parts:
                    outputs, transposed, *_ = torch.func.vjp(
                        derivatives.logits_of(model, images[part]), weights
                    )
                    root, examples = outputs.softmax(1).sqrt(), signs.take(part)
                    for number in numbers:
                        vector = derivatives.rademacher(examples, outputs.shape[1], number).to(outputs.dtype)
                        vector = _times_root(root, vector)
                        product = transposed(vector)[0]
                        earlier = sums.pop(number, {})
                        sums[number] = {n: v + earlier[n] if n in earlier else v for n, v in product.items()}
                        if part is parts[-1]:
                            total = sums.pop(number)
                            estimates.append(torch.stack([total[name].square().sum() for name in names]))
        means = torch.stack(estimates).cpu().double().view(-1, count, len(names)).sum(0).div(len(images))
    result: list[list[float]] = means.tolist()
    return result


def _times_root(root: Tensor, vectors: Tensor) -> Tensor:
    """The product S u (N, K) for each image, diag(r) u - r^2 (r . u) with r = sqrt p, where S S' = C."""
    product: Tensor = root * (vectors - root * (root * vectors).sum(1, keepdim=True))
    return product


def of_batch(model: nn.Module, logits: Tensor, signs: Tensor) -> Tensor:
    """The index on one batch with one random vector, as a differentiable scalar.

    The result is the sum over layers of |W| |J' S u| / sqrt(N), because |J' S u|^2 / N estimates a layer's
    trace (see `traces`). Because it is the root of an estimate, its mean is below the index. `logits` are (N,
    K) with gradients; in training mode, J includes the statistics of the batch. `signs` are the random signs
    u, (N, K). If the logits are not piecewise linear in a weight, their second derivatives are ignored.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    named = dict(model.named_parameters())
    weights = [named[name] for name in derivatives.layers(model).values() if named[name].requires_grad]
    # The root has no derivative at 0: a probability that underflows is replaced by the least number.
    root = logits.softmax(1).clamp_min(torch.finfo(logits.dtype).tiny).sqrt()
    vectors = _times_root(root, signs.to(root))
    gradients = torch.autograd.grad(logits, weights, vectors, create_graph=True, allow_unused=True)
    terms = [w.norm() * g.norm() for w, g in zip(weights, gradients, strict=True) if g is not None]
    total: Tensor = torch.stack(terms).sum() / math.sqrt(len(logits))
    return total
