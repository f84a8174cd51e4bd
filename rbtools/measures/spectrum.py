"""Extreme eigenvalues of symmetric operators that are given by their products with vectors.

Many operators are handled at once, one per row: a product of N images' Hessians is one call.
"""

from __future__ import annotations

from collections.abc import Callable

from rbtools.lazy import Tensor, torch

# From vectors (R, d) to the products (R, d), row by row.
Product = Callable[[Tensor], Tensor]


def lanczos(product: Product, start: Tensor, *, top: int, iterations: int, tolerance: float) -> Tensor:
    """The `top` largest eigenvalues of each row's operator: float64 (R, top), NaN where there are fewer.

    Lanczos (1950) with full reorthogonalisation; it ends when the residual of each wanted Ritz value is below
    `tolerance` times the largest absolute value, or after `iterations` products. A row whose Krylov space is
    exhausted has its exact eigenvalues. Eigenvalues that are not finite are NaN.

    Shape: start float (R, d), not zero.
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
        for _twice in range(2):  # a single pass leaves rounding errors
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
    """The largest Ritz values (R, at most top), descending, and which rows need no further step."""
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

    Power iteration; it ends when no row's estimate changes by more than a share `tolerance`, or after
    `iterations` products.

    Shape: start float (R, d), not zero.
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
