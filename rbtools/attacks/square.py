"""Square: random search with squares of pixels, without gradients."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks import pyauto, square_search
from rbtools.attacks.base import ReferenceBackend, backend_param, norm_param
from rbtools.registry import param

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_batch import AttackBatch, Stage
    from rbtools.attacks.pyauto import TameModel
    from rbtools.attacks.target import Network
    from rbtools.rng.draws import Draws

HALVED_AFTER = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""The queries, of 10,000, after which the share of pixels in a square is halved (section 4 of the paper)."""


@dataclass(frozen=True, kw_only=True)
class Square(ReferenceBackend):
    """Square attack (Andriushchenko et al. 2020, arXiv:1912.00049), L-infinity, L2 and L1.

    A random search that lowers the margin z_y - max of the others and uses only the logits of the model.
    Every image has its own squares. A square that would change nothing costs no query of the model. An
    example that is fooled is dropped. Unbroken examples are returned unchanged.

    The share of the pixels in a square starts at p and is halved after 10, 50, 200, 500, 1000, 2000, 4000,
    6000 and 8000 queries. With schedule "fixed" these numbers do not depend on --queries, as in AutoAttack;
    with "rescaled" they are multiplied by queries / 10,000, as in the paper and in torchattacks.

    Shape: images float32 (N, C, H, W) in [0, 1], labels int64 (N,); the result is as images.
    """

    name: ClassVar[str] = "square"
    version: ClassVar[int] = 2
    random: ClassVar[bool] = True
    loss: ClassVar[str] = "margin"

    eps: float = 8 / 255
    norm: str = norm_param("l1")
    queries: int = param(5000, "Number of queries of the model.", check="positive")
    p: float = param(0.8, "Share of the pixels in the first squares.", check="fraction")
    schedule: str = param(
        "fixed",
        "Whether the squares shrink after fixed numbers of queries (AutoAttack; Jung et al.), or after shares"
        " of --queries (the paper; torchattacks, and so NAS-RobBench-201).",
        choices=("fixed", "rescaled"),
    )
    restarts: int = param(1, "Number of runs from new random starts.", check="positive")
    backend: str = backend_param()

    def stages(self, classes: int) -> list[Stage]:
        return [functools.partial(self._search, restart) for restart in range(self.restarts)]

    def share(self, query: int) -> float:
        """Share of the pixels in the square of a query, counted from 0."""
        if self.schedule == "rescaled":
            query = int(query / self.queries * 10000)
        return float(self.p / 2 ** sum(query > after for after in HALVED_AFTER))

    def side(self, query: int, height: int, width: int) -> int:
        """Side of the square of a query in pixels; odd and at least 3 in l2 and l1, where it needs a
        centre."""
        side = max(round(math.sqrt(self.share(query) * height * width)), 1)
        if self.norm != "linf":
            side = max(side, 3) | 1
        return min(side, height, width)

    def _search(self, restart: int, model: Network, batch: AttackBatch, more: bool) -> tuple[Tensor, Tensor]:
        return square_search.square_search(
            model,
            batch,
            eps=self.eps,
            norm=self.norm,
            sides=[self.side(query, *batch.images.shape[2:]) for query in range(self.queries)],
            restart=restart,
        )

    def run_reference(self, model: Network, images: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        def attack(tame: TameModel, seed: int) -> Callable[[Tensor, Tensor], Tensor]:
            from pyautoattack.square import SquareAttack

            if self.norm != "linf":
                pyauto.need_tiles(images, self.name, self.norm)
            square = SquareAttack(
                tame,
                norm=pyauto.NORMS[self.norm],
                n_queries=self.queries,
                eps=self.eps,
                p_init=self.p,
                n_restarts=self.restarts,
                seed=seed,
                resc_schedule=self.schedule == "rescaled",
                device=images.device,
            )
            pyauto.mend_ties(square)
            perturb: Callable[[Tensor, Tensor], Tensor] = square.perturb
            return perturb

        return pyauto.run(model, images, labels, draws, eps=self.eps, attack=attack)
