"""PGD: repeated gradient steps, each projected back onto the ball and the box."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks import losses, steps
from rbtools.attacks.base import norm_param, relative_step_param, step_size_param
from rbtools.attacks.drive import SteppedAttack
from rbtools.errors import RbError
from rbtools.registry import param, rare_param
from rbtools.threats import ball

if TYPE_CHECKING:
    from rbtools.attacks.active_examples import AttackBatch
    from rbtools.attacks.drive import Iterate
    from rbtools.attacks.losses import AttackObjective
    from rbtools.attacks.oracle import Evaluated


@dataclass(frozen=True, kw_only=True)
class PGD(SteppedAttack):
    """Projected gradient descent on the cross-entropy (Madry et al. 2018, arXiv:1706.06083).

    L-infinity steps follow the sign of the gradient. L2 steps follow the normalised gradient. With the norm
    sphere, the points keep the norm of the image and stay in an L2 ball; eps is a share of this norm, and
    pixel values may leave [0, 1] (definition 1 in Wu et al. 2024). A restart attacks only the examples that
    are not broken yet.

    With `iterate="any"`, an example is broken as soon as the start or an iterate fools the model. The first
    point that fools the model is the result, and the example is dropped from the batch. With
    `iterate="last"`, only the last iterate counts, as in torchattacks, foolbox and the papers, and no
    examples are dropped.

    With `target`, an example is moved towards a class instead of away from its label. The target is the least
    likely class of the clean image, or the class with the given number. An example whose label is the target
    is attacked untargeted. A point that is classified as any wrong class is a success.

    Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,). Raises RbError for
    restarts without a random start, if both step_size and relative_step are given, and for a target that is
    not a class.
    """

    name: ClassVar[str] = "pgd"
    version: ClassVar[int] = 1
    mean_of: ClassVar[str] = "loss"

    eps: float = 8 / 255
    norm: str = norm_param("sphere")
    steps: int = param(20, "Number of gradient steps.", check="positive")
    step_size: float | None = step_size_param("2.5*eps/steps")
    relative_step: float | None = relative_step_param()
    decay: str = rare_param(
        "constant",
        "Schedule of the step size: constant, or decreasing to zero linearly or along half a cosine.",
        choices=("constant", "linear", "cosine"),
        flags=("--step-decay",),
    )
    start: str = param(
        "uniform",
        "Starting point: a random point in the ball (uniform), or the image itself (zero).",
        choices=("uniform", "zero"),
    )
    restarts: int = param(1, "Number of runs from new random starts.", check="positive")
    iterate: str = param(
        "any",
        "Iterates that may count as a success: any iterate, or only the last iterate.",
        choices=("any", "last"),
    )
    target: str = rare_param("none", "Target class: none (untargeted), least-likely, or a class number.")

    def __post_init__(self) -> None:
        if self.restarts > 1 and self.start == "zero":
            raise RbError(
                f"Attack '{self.name}' has {self.restarts} restarts but starts at the image, so all runs"
                " would be the same. Use start 'uniform', or restarts 1."
            )
        self.check_step_size()
        if self.target not in ("none", "least-likely") and not self.target.isdecimal():
            raise RbError(
                f"target of attack '{self.name}' is '{self.target}'. Expected none, least-likely or a class"
                " number such as 3."
            )

    @property
    def loss(self) -> str:  # type: ignore[override]
        return "ce" if self.target == "none" else "targeted-ce"

    @property
    def effective_step_size(self) -> float:
        if self.step_size is not None:
            return self.step_size
        if self.relative_step is not None:
            return self.relative_step * self.eps
        # There is no cap: with a cap of 2/255, PGD-20 at eps 32/255 was weaker than FGSM (.454 versus .418).
        return 2.5 * self.eps / self.steps

    def step_at(self, step: int) -> float:
        """The length of step number `step`, counted from 0, in pixel units of [0, 1]."""
        done = step / self.steps
        share = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}
        return self.effective_step_size * share[self.decay]

    @property
    def reach(self) -> float:
        """The sum of all step lengths, in pixel units of [0, 1]."""
        return sum(map(self.step_at, range(self.steps)))

    @property
    def random(self) -> bool:
        return self.start == "uniform"

    @property
    def single_step(self) -> bool:
        return self.steps == self.restarts == 1

    @property
    def stem(self) -> str:
        return f"{self.name}{self.steps}{self.threat_suffix}"

    @property
    def clean_pass(self) -> bool:
        return self.target != "none"

    def goal(self, batch: AttackBatch) -> AttackObjective:
        if self.target == "none":
            return super().goal(batch)
        assert batch.logits is not None
        if self.target == "least-likely":
            return batch.goal(
                losses.targeted_cross_entropy, losses.ranked_targets(batch.logits, batch.labels)[:, -1]
            )
        target, classes = int(self.target), batch.logits.shape[1]
        if target >= classes:
            raise RbError(
                f"target of attack '{self.name}' is class {target}, but the model has only the classes 0 to"
                f" {classes - 1}."
            )
        return batch.goal(losses.targeted_cross_entropy, batch.labels.new_full((len(batch),), target))

    def begin(self, batch: AttackBatch, restart: int) -> Iterate:
        state = super().begin(batch, restart)
        if self.start == "uniform":
            state.points = ball.uniform_start(batch.images, batch.draws, self.eps, self.norm, draw=restart)
        return state

    def tell(self, state: Iterate, seen: Evaluated, step: int) -> None:
        state.points = steps.step(
            state.points,
            seen.gradient,
            state.images,
            eps=self.eps,
            step_size=self.step_at(step),
            norm=self.norm,
        )
