"""Mixed: a weighted mean of clean and adversarial cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.errors import RbError
from rbtools.lazy import Tensor, nn
from rbtools.registry import param
from rbtools.rng.draws import Draws
from rbtools.training.base import Adversarial, LossTerms, cross_entropy


@dataclass(frozen=True, kw_only=True)
class Mixed(Adversarial):
    """The multi-objective training of NAS-RobBench-201, with the loss (1 - beta) * CE(x) + beta * CE(x').

    `beta=0` is standard training without an attack. `beta=1` is adversarial training, with which the numbers
    of that benchmark were computed. The point x' maximises the cross-entropy, starting at a uniform point.

    With `norm` sphere, the attack follows the paper's theory (definition 1): x' lies on the sphere of
    points that have the norm of the image, at an L2 distance of at most eps times that norm. Pixels may then
    leave [0, 1].
    """

    name = "mixed"
    inner = "ce"
    start = "uniform"

    beta: float = param(0.5, "Weight of the adversarial part.", check="fraction")
    norm: str = param(  # type: ignore[misc]
        "linf",
        "The norm of the attack: linf, or sphere, which is L2 on the points that have the norm of the"
        " image. With sphere, --eps and --step-size are fractions of that norm.",
        choices=("linf", "sphere"),
    )

    def __post_init__(self) -> None:
        if self.norm == "sphere" and self.eps > 2:
            raise RbError(
                f"eps of training method 'mixed' is {self.eps:g} with norm sphere. Expected a fraction"
                " of an image's norm from 0 to 2, such as 0.1, or norm linf."
            )
        super().__post_init__()

    def inner_attack(self, model: nn.Module, images: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        return images if self.beta == 0 else self.perturb(model, images, labels, draws)

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, inner_result: Tensor) -> LossTerms:
        if self.beta == 0:
            logits = model(images)
            return LossTerms(cross_entropy(logits, labels), clean=logits)
        clean = None if self.beta == 1 else model(images)
        adversarial = model(inner_result)
        values = self.beta * cross_entropy(adversarial, labels)
        if clean is not None:
            values = (1 - self.beta) * cross_entropy(clean, labels) + values
        return LossTerms(values, clean, adversarial)
