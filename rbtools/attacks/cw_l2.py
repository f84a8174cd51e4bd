"""CW-L2: the nearest adversarial example in L2, by Carlini and Wagner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks import cw_search
from rbtools.attacks.minimal_norm import MinimalNormAttack
from rbtools.registry import param

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.target import Network


@dataclass(frozen=True, kw_only=True)
class CWL2(MinimalNormAttack):
    """The unbounded L2 attack of Carlini and Wagner (2017, arXiv:1608.04644).

    It minimises |x' - x|^2 + c * max(z_y - max of the others, -kappa) by Adam over w, where x' = (tanh(w) +
    1) / 2, and searches for the smallest c that succeeds for each example. Within a run, an example stops
    after a tenth of the steps without improvement. The search does not use eps, which only limits the
    distance of adversarial examples that count. `run` also returns the distances as "distance" (infinite if
    there is no adversarial example).

    Shape: images float32 (N, C, H, W) in [0, 1], labels int64 (N,); the result is as images. Images without
    an adversarial example within eps are returned unchanged.
    """

    name: ClassVar[str] = "cw-l2"
    version: ClassVar[int] = 1
    norm = "l2"
    loss: ClassVar[str] = "margin"

    eps: float = 8.0
    steps: int = param(100, "Number of Adam steps of each run.", check="positive")
    searches: int = param(9, "Number of runs in the search for the weight c.", check="positive")
    c: float = param(0.01, "Weight of the margin in the first run.", check="positive")
    lr: float = param(0.01, "Learning rate of Adam.", check="positive")
    kappa: float = param(0.0, "The margin that counts as fooled.", check="non-negative")

    @property
    def stem(self) -> str:
        return self.name

    def search(self, model: Network, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return cw_search.cw_search(
            model,
            images,
            labels,
            count=self.steps,
            searches=self.searches,
            c=self.c,
            rate=self.lr,
            kappa=self.kappa,
        )
