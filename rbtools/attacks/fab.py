"""FAB: steps onto the linearised decision boundary, biased towards the image."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks import fab_steps, losses, pyauto
from rbtools.attacks.base import ReferenceBackend, backend_param, norm_param
from rbtools.registry import param

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_batch import AttackBatch, Stage
    from rbtools.attacks.pyauto import TameModel
    from rbtools.attacks.target import Network
    from rbtools.rng.draws import Draws


@dataclass(frozen=True, kw_only=True)
class FAB(ReferenceBackend):
    """Fast adaptive boundary attack (Croce and Hein 2020, arXiv:1907.02044), without targets.

    It searches for the nearest adversarial example; an example is broken, and dropped, once one within eps is
    found. Every step takes the gradients of all classes; `fab-t` takes two and scales to many classes. The
    first run starts at the image. Unbroken examples are returned unchanged.

    Shape: images float32 (N, C, H, W) in [0, 1], labels int64 (N,); the result is as images.
    """

    name: ClassVar[str] = "fab"
    version: ClassVar[int] = 1
    loss: ClassVar[str] = "logit-difference"
    targeted: ClassVar[bool] = False

    eps: float = 8 / 255
    norm: str = norm_param("l1")
    steps: int = param(100, "Number of steps.", check="positive")
    restarts: int = param(1, "Number of runs; all but the first have random starts.", check="positive")
    backend: str = backend_param()

    @property
    def random(self) -> bool:
        """Whether the result depends on the draws."""
        return self.restarts > 1

    def stages(self, classes: int) -> list[Stage]:
        return [functools.partial(self._walk, restart, None) for restart in range(self.restarts)]

    def _walk(
        self, restart: int, rank: int | None, model: Network, batch: AttackBatch, more: bool
    ) -> tuple[Tensor, Tensor]:
        assert batch.logits is not None
        targets = None if rank is None else losses.ranked_targets(batch.logits, batch.labels)[:, rank]
        draw = None if restart == 0 else restart * batch.logits.shape[1] + (rank or 0)
        return fab_steps.fab(model, batch, targets, eps=self.eps, norm=self.norm, count=self.steps, draw=draw)

    def run_reference(self, model: Network, images: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        def attack(tame: TameModel, seed: int) -> Callable[[Tensor, Tensor], Tensor]:
            from pyautoattack.fab_pt import FABAttack_PT

            perturb: Callable[[Tensor, Tensor], Tensor] = FABAttack_PT(
                tame,
                norm=pyauto.NORMS[self.norm],
                n_restarts=self.restarts,
                n_iter=self.steps,
                eps=self.eps,
                seed=seed,
                targeted=self.targeted,
                device=images.device,
                n_target_classes=min(getattr(self, "targets", 9), tame.classes - 1),
            ).perturb
            return perturb

        return pyauto.run(model, images, labels, draws, eps=self.eps, attack=attack)
