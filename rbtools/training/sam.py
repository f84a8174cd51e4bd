"""SAM: sharpness-aware minimisation."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.registry import rare_param
from rbtools.training.erm import ERM


@dataclass(frozen=True, kw_only=True)
class SAM(ERM):
    """Sharpness-aware minimisation (Foret et al. 2021, arXiv:2010.01412). The loss is CE at the weights w +
    rho g / |g|.

    g is the gradient of the batch's mean cross-entropy with respect to all weights w, and |g| is its L2 norm.
    The step is made from w with the gradient at the perturbed weights. BatchNorm's statistics come from
    the pass at w (davda54/sam). The history contains loss and accuracy at the perturbed weights.
    """

    name = "sam"

    rho: float = rare_param(0.05, "L2 norm of the perturbation of all weights.", check="non-negative")

    @property
    def weight_radius(self) -> float | None:
        return self.rho
