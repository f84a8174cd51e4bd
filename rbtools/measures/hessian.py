"""Hessian of the loss with respect to weights or images: its largest eigenvalues and its trace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rbtools.lazy import Tensor, nn, torch
from rbtools.measures import derivatives
from rbtools.measures.base import BatchResult, Measure, MeasureBatch, Value, over_batches, standard_error
from rbtools.registry import param, rare_param

# Maps vectors (R, d) to products (R, d), with one operator for each row.
Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Hessian(Measure):
    """Largest eigenvalues and trace of the Hessian of the mean cross-entropy.

    For hessian.weight, the Hessian is taken with respect to all weights (as computed by Jung et al. 2023).
    For hessian.input, each image's loss is differentiated with respect to the image, and the numbers are
    averaged over images (as in the argument of Zhao et al. 2020). The value lmax is the largest eigenvalue,
    by Lanczos; top2, top3 ... are the next eigenvalues. The value labs is the eigenvalue of largest absolute
    value, with its sign, by power iteration. The trace is estimated with Hutchinson's method.
    """

    name = "hessian"
    random = True
    less_is_better = True

    wrt: str = param(
        "weight",
        "Differentiate with respect to the weights, the input, or both.",
        choices=("weight", "input", "both"),
    )
    solver: str = param("lanczos", "Method for the eigenvalues.", choices=("lanczos", "power", "both"))
    top: int = param(1, "Number of largest eigenvalues, with Lanczos.", check="positive")
    iterations: int = rare_param(
        100, "Maximal number of Hessian-vector products per eigenvalue.", check="positive"
    )
    tolerance: float = rare_param(
        1e-3, "Error tolerance of eigenvalues, relative to the largest.", check="positive"
    )
    probes: int = param(20, "Number of random vectors for a trace.", check="positive")

    @classmethod
    def asked(cls, words: Collection[str]) -> dict[str, Any]:
        wrt = sorted({"weight", "input"}.intersection(words))
        tops = [int(word[3:]) for word in words if word.startswith("top") and word[3:].isdigit()]
        asked: dict[str, Any] = {"wrt": wrt[0] if len(wrt) == 1 else "both"}
        if "labs" in words:
            asked["solver"] = "both" if tops or "lmax" in words else "power"
        return asked | ({"top": max(tops)} if tops else {})

    def settings(self, value: str) -> dict[str, Any]:
        if value.endswith("trace"):
            return {"probes": self.probes}
        return {"iterations": self.iterations, "tolerance": self.tolerance}

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        result: BatchResult = {}
        if self.wrt != "input":
            result |= self._weight(model, batch)
        if self.wrt != "weight":
            result |= self._input(model, batch)
        return result

    @property
    def of_images(self) -> bool:
        return self.wrt == "input"

    def values(self, results: Sequence[BatchResult], sizes: Sequence[int]) -> list[Value]:
        """Standard errors are over batches or, for a single batch, over random vectors or images."""
        values = []
        for name in (name for name in results[0] if not name.endswith(".probes")):
            means = [torch.tensor(result[name], dtype=torch.float64).mean() for result in results]
            value = over_batches(name, [float(mean) for mean in means], sizes)
            probes, numbers = results[0].get(f"{name}.probes"), results[0][name]
            if len(results) == 1 and probes is not None:
                value = replace(value, se=standard_error(probes), over="probes")
            elif len(results) == 1 and isinstance(numbers, list) and len(numbers) > 1:
                value = replace(value, se=standard_error(numbers), over="examples")
            values.append(value)
        return values

    def _weight(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        hessian = derivatives.WeightHessian(model, batch.images, batch.labels, batch.chunk)
        traces = [sum(row) for row in hessian.traces(batch.probes, self.probes)]
        start = batch.probes.child("start").normal((hessian.size,))
        rows = self._rows("weight", hessian.flat, start)
        result: BatchResult = {name: float(value[0]) for name, value in rows.items()}
        result["weight.trace"] = sum(traces) / self.probes
        result["weight.trace.probes"] = traces
        return result

    def _input(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        size = batch.images[0].numel()
        parts: dict[str, list[Tensor]] = {}
        for first in range(0, len(batch), batch.chunk):
            rows = torch.arange(len(batch), device=batch.images.device)[first : first + batch.chunk]
            hessian = derivatives.InputHessian(model, batch.images[rows], batch.labels[rows])
            draws = batch.draws.take(rows)
            numbers: dict[str, Any] = self._rows("input", hessian.flat, draws.child("start").normal((size,)))
            traces = []
            for number in range(self.probes):
                vectors = derivatives.rademacher(draws.child("trace"), size, number)
                traces.append((vectors * hessian.flat(vectors)).sum(1).double().cpu())
            numbers["input.trace"] = torch.stack(traces).mean(0)
            for name, value in numbers.items():
                parts.setdefault(name, []).append(value)
        return {name: torch.cat(values).tolist() for name, values in parts.items()}

    def _rows(self, wrt: str, product: Product, start: Tensor) -> dict[str, Tensor]:
        """The eigenvalues by name; each value has one number for each row (R,)."""
        limits = {"iterations": self.iterations, "tolerance": self.tolerance}
        result: dict[str, Tensor] = {}
        if self.solver != "power":
            largest = lanczos(product, start, top=self.top, **limits)  # type: ignore[arg-type]
            for rank in range(self.top):
                result[f"{wrt}.top{rank + 1}" if rank else f"{wrt}.lmax"] = largest[:, rank]
        if self.solver != "lanczos":
            result[f"{wrt}.labs"] = power(product, start, **limits)  # type: ignore[arg-type]
        return result


def lanczos(product: Product, start: Tensor, *, top: int, iterations: int, tolerance: float) -> Tensor:
    """The `top` largest eigenvalues of each row's operator: float64 (R, top), NaN if the operator has fewer
    or if an eigenvalue is not finite.

    The method is Lanczos (1950) with full reorthogonalisation. A row is finished when the residuals of its
    `top` largest Ritz values are at most `tolerance` times its largest absolute Ritz value, or after
    `iterations` products. If the Krylov space of a row is exhausted, its Ritz values are exact eigenvalues.
    `start` is float (R, d), not zero.
    """
    rows = len(start)
    basis: list[Tensor] = []
    alphas = torch.zeros(rows, 0, dtype=torch.float64)
    betas = torch.zeros(rows, 0, dtype=torch.float64)
    eigenvalues = torch.full((rows, top), torch.nan, dtype=torch.float64)
    going = torch.ones(rows, dtype=torch.bool)
    current = start / start.norm(dim=1, keepdim=True)
    for _ in range(min(iterations, start.shape[1])):
        basis.append(current)
        following = product(current)
        alpha = (following * current).sum(1)
        for _twice in range(2):  # one pass would leave rounding errors
            for earlier in basis:
                following = following - (following * earlier).sum(1, keepdim=True) * earlier
        beta = following.norm(dim=1)
        alphas = torch.cat([alphas, alpha.double().cpu()[:, None]], dim=1)
        betas = torch.cat([betas, beta.double().cpu()[:, None]], dim=1)
        bad = going & ~(alphas[:, -1].isfinite() & betas[:, -1].isfinite())
        eigenvalues[bad] = torch.nan
        going &= ~bad
        if not going.any():
            break
        values, done = _ritz(alphas[going], betas[going], top, tolerance)
        eigenvalues[going, : values.shape[1]] = values
        going[going.clone()] = ~done
        if not going.any():
            break
        # An exhausted row continues with zeros, which change nothing.
        current = torch.where(beta[:, None] > 0, following / beta.clamp_min(1e-30)[:, None], 0.0)
    return eigenvalues


def _ritz(alphas: Tensor, betas: Tensor, top: int, tolerance: float) -> tuple[Tensor, Tensor]:
    """The largest Ritz values (R, at most top) in descending order, and whether each row is finished."""
    tridiagonal = torch.diag_embed(alphas)
    if alphas.shape[1] > 1:
        off = betas[:, :-1]
        tridiagonal += torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
    values, vectors = torch.linalg.eigh(tridiagonal)
    size = values.abs().amax(1)
    residuals = betas[:, -1:] * vectors[:, -1, :].abs()
    wanted = min(top, values.shape[1])
    converged = (residuals[:, -wanted:] <= tolerance * size[:, None]).all(1) & (values.shape[1] >= top)
    # Products in float32 are exact to some 1e-6 of the largest eigenvalue.
    exhausted = betas[:, -1] <= 1e-6 * size
    return values.flip(1)[:, :wanted], converged | exhausted


def power(product: Product, start: Tensor, *, iterations: int, tolerance: float) -> Tensor:
    """The eigenvalue of largest absolute value of each row's operator, with its sign: float64 (R,).

    Power iteration ends when the relative change of every row's estimate is at most `tolerance`, or after
    `iterations` products. `start` is float (R, d), not zero.
    """
    current = start / start.norm(dim=1, keepdim=True)
    value: Tensor | None = None
    for _ in range(iterations):
        following = product(current)
        last, value = value, (following * current).sum(1).double()
        if last is not None and ((value - last).abs() <= tolerance * (last.abs() + 1e-6)).all():
            break
        norm = following.norm(dim=1, keepdim=True)
        current = torch.where(norm > 0, following / norm.clamp_min(1e-30), current)
    assert value is not None
    return value.cpu()
