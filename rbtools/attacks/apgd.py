"""The Auto-PGD attacks: untargeted on the cross-entropy, the DLR loss and the margin, and targeted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.attacks import losses, pyauto
from rbtools.attacks.apgd_ascent import apgd
from rbtools.attacks.base import ReferenceBackend, backend_param, norm_param
from rbtools.attacks.targets import Towards
from rbtools.lazy import torch
from rbtools.registry import param

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import AttackBatch, Stage
    from rbtools.attacks.oracle import Oracle
    from rbtools.attacks.pyauto import TameModel


class AutoPGD(ReferenceBackend):
    """Base class of the Auto-PGD attacks. `unbroken` is described in `Climb`."""

    steps: int
    restarts: int
    unbroken: ClassVar[str] = "images"
    mean_of: ClassVar[str] = "loss"

    def _climb(
        self, draws: Sequence[int], targets: Tensor | None, model: Oracle, batch: AttackBatch, more: bool
    ) -> tuple[Tensor, Tensor]:
        assert batch.logits is not None
        goal = batch.goal(losses.LOSSES[self.loss_for(batch.logits.shape[1])], targets)
        return apgd(self, draws, model, batch, goal)

    def _reference(
        self, cls: Any, tame: TameModel, device: torch.device, seed: int, **more: Any
    ) -> Callable[[Tensor, Tensor], Tensor]:
        perturb: Callable[[Tensor, Tensor], Tensor] = cls(
            tame,
            n_iter=self.steps,
            norm=pyauto.NORMS[self.norm],
            n_restarts=self.restarts,
            eot_iter=self.draws_each,
            eps=self.eps,
            seed=seed,
            device=device,
            logger=pyauto.logger,
            # pyautoattack's larger balls fail with one step
            use_largereps=self.norm == "l1" and self.steps > 1,
            **more,
        ).perturb
        return perturb


@dataclass(frozen=True, kw_only=True)
class APGDCE(AutoPGD):
    """Auto-PGD on the cross-entropy (Croce and Hein 2020, arXiv:2003.01690).

    In L1 the attack is l1-APGD (Croce and Hein 2021, arXiv:2103.01208): steps follow the largest entries of
    the gradient and are projected onto the intersection of the L1 ball and the box [0, 1]. The first 30 % of
    the steps use a ball of radius 3 eps, and the next 30 % use the radius 2 eps. Any iterate that fools the
    model is a success, and its example is dropped. Unbroken examples are returned unchanged.

    Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,).
    """

    name: ClassVar[str] = "apgd-ce"
    version: ClassVar[int] = 2
    random: ClassVar[bool] = True
    loss: ClassVar[str] = "ce"

    eps: float = 8 / 255
    norm: str = norm_param("l1")
    steps: int = param(100, "Number of gradient steps.", check="positive")
    restarts: int = param(1, "Number of runs from new random starts.", check="positive")
    backend: str = backend_param()

    def stages(self, classes: int) -> list[Stage]:
        return [functools.partial(self._climb, (restart,), None) for restart in range(self.restarts)]

    def reference(self, tame: TameModel, images: Tensor, seed: int) -> Callable[[Tensor, Tensor], Tensor]:
        from pyautoattack.autopgd_base import APGDAttack

        return self._reference(APGDAttack, tame, images.device, seed, loss=self.loss)


@dataclass(frozen=True, kw_only=True)
class APGDDLR(APGDCE):
    """Auto-PGD on the difference of logits ratio, DLR (Croce and Hein 2020, arXiv:2003.01690).

    The loss is the margin divided by the difference of the largest and the third largest logit, so it does
    not depend on the scale of the logits. The loss requires three classes; for two classes the margin itself
    is used.

    Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,).
    """

    name: ClassVar[str] = "apgd-dlr"
    version: ClassVar[int] = 1
    loss: ClassVar[str] = "dlr"


@dataclass(frozen=True, kw_only=True)
class APGDMargin(APGDCE):
    """Auto-PGD on the margin, which is the largest other logit minus z_y. The attack is not registered.

    Two-phase attacks in L1 first run this attack on all images. If an example is not broken, the result is
    the point of largest loss in the ball, because two-phase attacks order unbroken examples by their margin
    at this point.
    """

    name: ClassVar[str] = "apgd-margin"
    version: ClassVar[int] = 1
    loss: ClassVar[str] = "margin"
    unbroken: ClassVar[str] = "best_points"


@dataclass(frozen=True, kw_only=True)
class APGDT(AutoPGD):
    """Targeted Auto-PGD on the targeted DLR loss (Croce and Hein 2020, arXiv:2003.01690).

    The attack makes one run for each target. The targets are the wrong classes in decreasing order of their
    clean logits. A point that is classified as any wrong class is a success. The loss requires four classes.
    For two or three classes, only the numerator z_t - z_y of the loss is used. Unbroken examples are returned
    unchanged. In L1 the attack makes the same steps as apgd-ce.

    Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,).
    """

    name: ClassVar[str] = "apgd-t"
    version: ClassVar[int] = 1
    random: ClassVar[bool] = True
    loss: ClassVar[str] = "targeted-dlr"

    eps: float = 8 / 255
    norm: str = norm_param("l1")
    steps: int = param(100, "Number of gradient steps.", check="positive")
    targets: int = param(9, "Number of wrong classes to use as targets (at most all).", check="positive")
    restarts: int = param(1, "Number of runs from new random starts.", check="positive")
    backend: str = backend_param()

    def stages(self, classes: int) -> list[Stage]:
        ranks = range(min(self.targets, classes - 1))
        return [
            Towards(self, (start * self.targets + rank,)) for start in range(self.restarts) for rank in ranks
        ]

    def rank(self, number: int) -> int:
        return number % self.targets

    def towards(
        self, numbers: Sequence[int], model: Oracle, batch: AttackBatch, more: bool
    ) -> tuple[Tensor, Tensor]:
        """The runs with these numbers (rbtools.attacks.targets)."""
        targets = losses.targets_of([*map(self.rank, numbers)], batch)
        return self._climb(numbers, targets, model, batch, more)

    def reference(self, tame: TameModel, images: Tensor, seed: int) -> Callable[[Tensor, Tensor], Tensor]:
        from pyautoattack.autopgd_base import APGDAttack_targeted

        targets = min(self.targets, tame.classes - 1)
        return self._reference(APGDAttack_targeted, tame, images.device, seed, n_target_classes=targets)
