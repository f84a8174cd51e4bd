"""APGD-CE: PGD with momentum and an adaptive step size, on the cross-entropy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks import apgd, losses, pyauto
from rbtools.attacks.base import ReferenceBackend, backend_param, norm_param
from rbtools.registry import param

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_batch import AttackBatch, Stage
    from rbtools.attacks.pyauto import TameModel
    from rbtools.attacks.target import Network
    from rbtools.rng.draws import Draws


@dataclass(frozen=True, kw_only=True)
class APGDCE(ReferenceBackend):
    """Auto-PGD on the cross-entropy (Croce and Hein 2020, arXiv:2003.01690).

    In L1 it is l1-APGD (Croce and Hein 2021, arXiv:2103.01208): steps along the largest entries of the
    gradient, projected onto ball and box; .3 of the steps are in the ball of 3 eps, .3 in that of 2 eps.
    Any iterate that fools the model counts, and its example is dropped. Unbroken examples are returned
    unchanged.

    Shape: images float32 (N, C, H, W) in [0, 1], labels int64 (N,); the result is as images.
    """

    name: ClassVar[str] = "apgd-ce"
    version: ClassVar[int] = 2
    random: ClassVar[bool] = True
    loss: ClassVar[str] = "ce"

    eps: float = 8 / 255
    norm: str = norm_param("l1")
    steps: int = param(100, "Number of gradient steps.", check="positive")
    restarts: int = param(1, "Number of runs from new random starts.", check="positive")
    eot: int = param(1, "Passes to average every gradient over, for randomised models.", check="positive")
    backend: str = backend_param()

    def stages(self, classes: int) -> list[Stage]:
        return [functools.partial(self._climb, restart) for restart in range(self.restarts)]

    def _climb(self, restart: int, model: Network, batch: AttackBatch, more: bool) -> tuple[Tensor, Tensor]:
        assert batch.logits is not None
        loss = losses.LOSSES[self.loss_for(batch.logits.shape[1])]
        return apgd.apgd(
            model,
            batch,
            batch.goal(loss),
            eps=self.eps,
            norm=self.norm,
            count=self.steps,
            draw=restart,
            passes=self.eot,
        )

    def run_reference(self, model: Network, images: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        def attack(tame: TameModel, seed: int) -> Callable[[Tensor, Tensor], Tensor]:
            from pyautoattack.autopgd_base import APGDAttack

            if self.loss == "dlr":
                pyauto.need_classes(tame, 3, "the DLR loss", self.name)
            perturb: Callable[[Tensor, Tensor], Tensor] = APGDAttack(
                tame,
                n_iter=self.steps,
                norm=pyauto.NORMS[self.norm],
                n_restarts=self.restarts,
                eps=self.eps,
                eot_iter=self.eot,
                seed=seed,
                loss=self.loss,
                device=images.device,
                logger=pyauto.logger,
                use_largereps=self.norm == "l1" and self.steps > 1,  # which fails with one step
            ).perturb
            return perturb

        return pyauto.run(model, images, labels, draws, eps=self.eps, attack=attack)
