"""Random perturbations in a ball: what corruption training, CVaR and EVaR average over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

NOISES = ("uniform", "gaussian", "laplace")


def noisy(images: Tensor, draws: Any, noise: str, eps: float, name: str) -> Tensor:
    """clip[0,1](x + eps * z): one z an example, from the stream `name` of its draws; eps in pixel units.

    uniform: z ~ U(-1, 1). gaussian and laplace: z ~ N(0, 1) and Laplace(1), clamped to [-1, 1]. PRBench
    says only that they lie in the ball; its table 5 matches these standard deviations, .72 and .73 of the
    radius, and not those of a truncated distribution (.54 and .50).
    """
    own, shape = draws.child(name), tuple(images.shape[1:])
    if noise == "gaussian":
        unit = own.normal(shape).clamp_(-1, 1)
    else:
        unit = own.uniform(shape).mul_(2).sub_(1 - 2.0**-24)  # odd multiples of 2^-24: symmetric about 0
        if noise == "laplace":
            unit = (-unit.sign() * (-unit.abs()).log1p()).clamp_(-1, 1)
    result: Tensor = (images + eps * unit.to(images)).clamp_(0, 1)
    return result
