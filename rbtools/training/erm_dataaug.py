"""ERM-DataAug: the mean loss over many random perturbations of each image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.training.base import LossTerms
from rbtools.training.sampled import Sampled

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rbtools.rng.draws import Draws


@dataclass(frozen=True, kw_only=True)
class ERMDataAug(Sampled["list[Tensor]"]):
    """Mean cross-entropy of uniform points around x (wellzline/PRBenchmark, ERM_DataAug): E[CE(x + delta)].

    With one sample it is corruption training. Each sample of the batch is a separate forward pass.
    """

    name: ClassVar[str] = "erm-dataaug"
    version: ClassVar[int] = 1

    @property
    def passes(self) -> tuple[int, int]:
        return self.samples, self.samples

    def inner_attack(self, model: nn.Module, images: Tensor, labels: Tensor, draws: Draws) -> list[Tensor]:
        return self.points(images, draws, 0)

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, inner_result: list[Tensor]) -> LossTerms:
        losses, worst = self.losses(model, inner_result, labels)
        return self.risk(losses.mean(0), worst)
