"""Random perturbations in a ball, for corruption training, CVaR and EVaR."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.rng.draws import Draws

NOISES = ("uniform", "gaussian", "laplace")


def noisy(images: Tensor, draws: Draws, noise: str, eps: float, name: str, scale: str = "eps") -> Tensor:
    """clip[0,1](x + delta): one delta per example, from the stream `name` of its draws; eps in pixel units.

    uniform: delta ~ U(-eps, eps). gaussian and laplace: delta = clamp(s * z, -eps, eps) with z ~ N(0, 1) or
    Laplace(1). `scale` says what s is: "eps", the scale of PRBench's evaluation noise, or "unit", 1, as in
    the training of PRBench's code (wellzline/PRBenchmark, corruption_gaussian and corruption_laplace), where
    97 % of the values lie at -eps or eps for eps 8/255.
    """
    own, shape = draws.child(name), tuple(images.shape[1:])
    if noise == "gaussian":
        unit = own.normal(shape)
    else:
        unit = own.uniform(shape).mul_(2).sub_(1 - 2.0**-24)  # odd multiples of 2^-24: symmetric about 0
        if noise == "laplace":
            unit = -unit.sign() * (-unit.abs()).log1p()
    if noise == "uniform" or scale == "eps":
        delta = eps * unit.clamp_(-1, 1).to(images)
    else:
        delta = unit.to(images).clamp_(-eps, eps)
    result: Tensor = (images + delta).clamp_(0, 1)
    return result
