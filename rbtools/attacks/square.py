"""Square: random search with squares of pixels, without gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.registry import param

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from rbtools.attacks.pyauto import TameModel
    from rbtools.attacks.steps import Model


@dataclass(frozen=True, kw_only=True)
class Square:
    """Square attack (Andriushchenko et al. 2020, arXiv:1912.00049), L-infinity, by pyautoattack.

    It lowers the margin z_y - max of the others and asks the model for logits alone. The
    schedule of square sizes is AutoAttack's: it is not stretched to the number of queries.

    Shape: images float32 (N, C, H, W) in [0, 1], labels int64 (N,); the result is as images.
    """

    name: ClassVar[str] = "square"
    version: ClassVar[int] = 1
    norm: ClassVar[str] = "linf"
    random: ClassVar[bool] = True
    whole_tiles: ClassVar[bool] = True

    eps: float = 8 / 255
    queries: int = param(5000, "Number of queries of the model.", check="positive")
    p: float = param(0.8, "Share of the pixels in the first squares.", check="fraction")

    @property
    def stem(self) -> str:
        return "square"

    def __call__(self, model: Model, images: Tensor, labels: Tensor, draws: Any) -> Tensor:
        from rbtools.attacks import pyauto

        def attack(tame: TameModel, seed: int) -> Callable[[Tensor, Tensor], Tensor]:
            from pyautoattack.square import SquareAttack

            square = SquareAttack(
                tame,
                norm="Linf",
                n_queries=self.queries,
                eps=self.eps,
                p_init=self.p,
                n_restarts=1,
                seed=seed,
                resc_schedule=False,
                device=images.device,
            )
            pyauto.mend_ties(square)
            perturb: Callable[[Tensor, Tensor], Tensor] = square.perturb
            return perturb

        return pyauto.run(model, images, labels, draws, eps=self.eps, attack=attack)
