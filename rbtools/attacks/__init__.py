"""Adversarial attacks: pure functions of a model, images, labels and per-example draws.

One file an attack, one line here. An attack knows no device, seed or file; the engine projects its
result onto the budget again and decides success in float32, so that a wrong attack cannot report a
false number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rbtools.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

ATTACKS = Registry(
    "attack",
    {
        "fgsm": "rbtools.attacks.fgsm:FGSM",
        "pgd": "rbtools.attacks.pgd:PGD",
        "cw": "rbtools.attacks.cw:CW",
        "cw-l2": "rbtools.attacks.cw_l2:CWL2",
        "apgd-ce": "rbtools.attacks.apgd_ce:APGDCE",
        "apgd-dlr": "rbtools.attacks.apgd_dlr:APGDDLR",
        "apgd-t": "rbtools.attacks.apgd_t:APGDT",
        "fab": "rbtools.attacks.fab:FAB",
        "fab-t": "rbtools.attacks.fab_t:FABT",
        "square": "rbtools.attacks.square:Square",
        "aa": "rbtools.attacks.aa:AutoAttack",
        "noise": "rbtools.attacks.noise:NoiseAttack",
    },
)


class Attack(Protocol):
    """What every registered attack offers; a frozen, keyword-only dataclass fulfils it.

    `eps` is the radius of the ball of `norm` ("linf" or "l2"), in pixel units of [0, 1]. `stem` is
    the metric's name without the radius ("pgd20.l2"). `batch_dependent` is True where the randomness
    belongs to the batch and not to the example: such an attack must be handed the same examples
    together every time, whatever the batch that memory allows. `random` is False where the result
    does not depend on the draws at all.

    Those written here also have `loss`, the name of what they increase, and `loss_for(classes)`, that for
    a model of so many classes; and `run`, which takes what a call takes and also returns what else there
    is to tell of each example: `broken_by` of aa (a number in its `parts`), `distance` of cw-l2.
    """

    name: ClassVar[str]
    version: ClassVar[int]

    @property
    def batch_dependent(self) -> bool: ...

    @property
    def eps(self) -> float: ...

    @property
    def norm(self) -> str: ...

    @property
    def random(self) -> bool: ...

    @property
    def stem(self) -> str: ...

    def __call__(
        self, model: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, draws: Any
    ) -> Tensor:
        """Perturb `images`.

        Shape: images float32 (N, C, H, W) in [0, 1]; labels int64 (N,); the result is as images.
        `model` maps images to logits (N, classes); `draws` holds the random numbers of these N
        examples (rbtools.rng.draws.Draws).
        """
        ...
