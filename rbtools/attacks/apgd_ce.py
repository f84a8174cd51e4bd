"""APGD-CE: PGD with momentum and a step size that adapts, on the cross-entropy."""

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
class APGDCE:
    """Auto-PGD on the cross-entropy (Croce and Hein 2020, arXiv:2003.01690), by pyautoattack.

    Any iterate that fools the model counts. Examples that stay unbroken come back unchanged.

    Shape: images float32 (N, C, H, W) in [0, 1], labels int64 (N,); the result is as images.
    """

    name: ClassVar[str] = "apgd-ce"
    version: ClassVar[int] = 1
    random: ClassVar[bool] = True
    whole_tiles: ClassVar[bool] = True

    eps: float = 8 / 255
    norm: str = param("linf", "The norm that bounds the perturbation.", choices=("linf", "l2"))
    steps: int = param(100, "Number of gradient steps.", check="positive")
    restarts: int = param(1, "Number of runs from new random starts.", check="positive")

    @property
    def stem(self) -> str:
        return "apgd-ce" + (".l2" if self.norm == "l2" else "")

    def __call__(self, model: Model, images: Tensor, labels: Tensor, draws: Any) -> Tensor:
        from rbtools.attacks import pyauto

        def attack(tame: TameModel, seed: int) -> Callable[[Tensor, Tensor], Tensor]:
            from pyautoattack.autopgd_base import APGDAttack

            apgd = APGDAttack(
                tame,
                n_iter=self.steps,
                norm=pyauto.NORMS[self.norm],
                n_restarts=self.restarts,
                eps=self.eps,
                seed=seed,
                loss="ce",
                device=images.device,
                logger=pyauto.logger,
            )
            perturb: Callable[[Tensor, Tensor], Tensor] = apgd.perturb
            return perturb

        return pyauto.run(model, images, labels, draws, eps=self.eps, attack=attack)
