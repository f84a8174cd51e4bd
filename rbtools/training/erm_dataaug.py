"""ERM-DataAug: the mean loss over many random perturbations of each image."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.lazy import Tensor
from rbtools.training.sampled import Sampled


@dataclass(frozen=True, kw_only=True)
class ERMDataAug(Sampled):
    """Mean cross-entropy of uniform points around x (wellzline/PRBenchmark, ERM_DataAug): E[CE(x + delta)].

    With one sample it is corruption training. Each sample of the batch is a separate forward pass.
    """

    name = "erm-dataaug"

    def risk(self, losses: Tensor) -> Tensor:
        return losses.mean(0)
