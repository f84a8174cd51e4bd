"""APGD-T: Auto-PGD towards each of several wrong classes in turn."""

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
class APGDT(ReferenceBackend):
    """Targeted Auto-PGD on the targeted DLR loss (Croce and Hein 2020, arXiv:2003.01690).

    One run per target: the wrong classes in the order of the clean logits, the most likely first. Any wrong
    class counts as a success. The loss needs four classes: for models of two or three it is z_t - z_y, the
    numerator alone. Unbroken examples are returned unchanged. In L1 the steps are those of apgd-ce.

    Shape: images float32 (N, C, H, W) in [0, 1], labels int64 (N,); the result is as images.
    Raises RbError for models of fewer than 4 classes with backend pyautoattack.
    """

    name: ClassVar[str] = "apgd-t"
    version: ClassVar[int] = 1
    random: ClassVar[bool] = True
    loss: ClassVar[str] = "targeted-dlr"

    eps: float = 8 / 255
    norm: str = norm_param("l1")
    steps: int = param(100, "Number of gradient steps.", check="positive")
    targets: int = param(9, "Number of wrong classes to try, if there are as many.", check="positive")
    restarts: int = param(1, "Number of runs from new random starts.", check="positive")
    backend: str = backend_param()

    def stages(self, classes: int) -> list[Stage]:
        targets = min(self.targets, classes - 1)
        return [
            functools.partial(self._climb, restart, rank)
            for restart in range(self.restarts)
            for rank in range(targets)
        ]

    def _climb(
        self, restart: int, rank: int, model: Network, batch: AttackBatch, more: bool
    ) -> tuple[Tensor, Tensor]:
        assert batch.logits is not None
        loss = losses.LOSSES[self.loss_for(batch.logits.shape[1])]
        targets = losses.ranked_targets(batch.logits, batch.labels)[:, rank]
        return apgd.apgd(
            model,
            batch,
            batch.goal(loss, targets),
            eps=self.eps,
            norm=self.norm,
            count=self.steps,
            draw=restart * self.targets + rank,
        )

    def run_reference(self, model: Network, images: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        def attack(tame: TameModel, seed: int) -> Callable[[Tensor, Tensor], Tensor]:
            from pyautoattack.autopgd_base import APGDAttack_targeted

            pyauto.need_classes(tame, 4, "the targeted DLR loss", self.name)
            perturb: Callable[[Tensor, Tensor], Tensor] = APGDAttack_targeted(
                tame,
                n_iter=self.steps,
                norm=pyauto.NORMS[self.norm],
                n_restarts=self.restarts,
                eps=self.eps,
                seed=seed,
                n_target_classes=min(self.targets, tame.classes - 1),
                device=images.device,
                logger=pyauto.logger,
                use_largereps=self.norm == "l1" and self.steps > 1,  # which fails with one step
            ).perturb
            return perturb

        return pyauto.run(model, images, labels, draws, eps=self.eps, attack=attack)
