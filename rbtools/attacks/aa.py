"""AutoAttack: several attacks in sequence, each on what the ones before left standing."""

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
class AutoAttack:
    """AutoAttack (Croce and Hein 2020, arXiv:2003.01690), by pyautoattack.

    standard: APGD-CE, targeted APGD, targeted FAB, Square. plus: APGD-CE and APGD-DLR with five
    restarts, FAB with five, Square, targeted APGD, targeted FAB. rand, for randomised models: APGD-CE
    and APGD-DLR, each gradient a mean of 20. Examples that stay unbroken come back unchanged.

    Shape: images float32 (N, C, H, W) in [0, 1], labels int64 (N,); the result is as images.
    Raises RbError for models of fewer than 4 classes (3 for rand), which its losses need.
    """

    name: ClassVar[str] = "aa"
    version: ClassVar[int] = 1
    random: ClassVar[bool] = True
    whole_tiles: ClassVar[bool] = True

    eps: float = 8 / 255
    norm: str = param("linf", "The norm that bounds the perturbation.", choices=("linf", "l2"))
    variant: str = param("standard", "Which set of attacks to run.", choices=("standard", "plus", "rand"))

    @property
    def stem(self) -> str:
        return "aa" + (".l2" if self.norm == "l2" else "")

    def __call__(self, model: Model, images: Tensor, labels: Tensor, draws: Any) -> Tensor:
        from rbtools.attacks import pyauto

        def attack(tame: TameModel, seed: int) -> Callable[[Tensor, Tensor], Tensor]:
            if self.variant == "rand":
                pyauto.need_classes(tame, 3, "the DLR loss", f"aa ({self.variant})")
            else:
                pyauto.need_classes(tame, 4, "the targeted DLR loss", f"aa ({self.variant})")
                if self.norm == "l2":
                    pyauto.need_l2_tiles(images, "aa")
            return self._sequence(tame, seed, images)

        return pyauto.run(model, images, labels, draws, eps=self.eps, attack=attack)

    def _sequence(self, tame: TameModel, seed: int, images: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        from pyautoattack import AutoAttack as Theirs

        from rbtools.attacks import pyauto

        theirs = Theirs(
            tame,
            norm=pyauto.NORMS[self.norm],
            eps=self.eps,
            version=self.variant,
            seed=seed,
            device=images.device,
        )
        theirs.verbose = False
        theirs.logger = theirs.apgd.logger = theirs.apgd_targeted.logger = pyauto.logger
        pyauto.mend_ties(theirs.square)
        # Their code takes 9 targets of any number of classes and fails where there are fewer.
        targets = min(9, tame.classes - 1)
        theirs.apgd_targeted.n_target_classes = theirs.fab.n_target_classes = targets

        def perturb(images: Tensor, labels: Tensor) -> Tensor:
            perturbed: Tensor = theirs.run_standard_evaluation(images, labels, batch_size=len(images))[0]
            return perturbed

        return perturb
