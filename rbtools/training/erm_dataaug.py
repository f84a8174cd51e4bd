"""ERM-DataAug: the mean loss over many random perturbations of each image."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.lazy import Tensor
from rbtools.training.sampled import Sampled


@dataclass(frozen=True, kw_only=True)
class ERMDataAug(Sampled):
    """Mean cross-entropy of uniform points around x, E[CE(x + delta)] (wellzline/PRBenchmark, ERM_DataAug).

    With one sample per image, the method is corruption training with uniform noise. Each sample is evaluated
    for the complete batch in a separate forward pass.
    """

    name = "erm-dataaug"

    def risk(self, losses: Tensor) -> Tensor:
        return losses.mean(0)
