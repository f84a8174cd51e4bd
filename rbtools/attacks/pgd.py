"""PGD: repeated gradient steps, each projected back onto the ball and the box."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.errors import RbError
from rbtools.registry import param

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.steps import Model


@dataclass(frozen=True, kw_only=True)
class PGD:
    """Projected gradient descent on the cross-entropy (Madry et al. 2018, arXiv:1706.06083).

    L-infinity steps follow the sign of the gradient, L2 steps the normalised gradient. A restart
    goes on with the examples that are not broken yet; what it broke is kept.

    `iterate="any"`: an example is broken as soon as an iterate, the start included, fools the model;
    that iterate is returned and the example leaves the batch. `iterate="last"`: only the last iterate
    counts, as in torchattacks, foolbox and the papers; nothing leaves the batch.

    Shape: images float32 (N, C, H, W) in [0, 1], labels int64 (N,); the result is as images.
    Raises RbError if restarts are asked for without a random start.
    """

    name: ClassVar[str] = "pgd"
    version: ClassVar[int] = 1
    whole_tiles: ClassVar[bool] = False

    eps: float = 8 / 255
    norm: str = param("linf", "The norm that bounds the perturbation.", choices=("linf", "l2"))
    steps: int = param(20, "Number of gradient steps.", check="positive")
    step_size: float | None = param(
        None,
        "Length of a step, in the unit of --eps.  [default: 2.5*eps/steps]",
        unit="eps",
        check="non-negative",
    )
    start: str = param(
        "uniform", "Start at a random point of the ball, or at the image.", choices=("uniform", "zero")
    )
    restarts: int = param(1, "Number of runs from new random starts.", check="positive")
    iterate: str = param(
        "any",
        "Which iterates may count as a success: any of them, or only the last.",
        choices=("any", "last"),
    )

    def __post_init__(self) -> None:
        if self.restarts > 1 and self.start == "zero":
            raise RbError(
                f"Attack 'pgd' has {self.restarts} restarts but starts at the image, so every run would be"
                " the same. Use start 'uniform', or restarts 1."
            )

    @property
    def effective_step_size(self) -> float:
        """The step in use, in pixel units of [0, 1]."""
        if self.step_size is not None:
            return self.step_size
        # Relative to eps: with a cap of 2/255 PGD-20 at 32/255 was weaker than FGSM (.454 against .418).
        return 2.5 * self.eps / self.steps

    @property
    def random(self) -> bool:
        """Whether the result depends on the draws."""
        return self.start == "uniform"

    @property
    def stem(self) -> str:
        return f"pgd{self.steps}" + (".l2" if self.norm == "l2" else "")

    def __call__(self, model: Model, images: Tensor, labels: Tensor, draws: Any) -> Tensor:
        import torch

        result = images.clone()
        left = torch.arange(len(images))
        with torch.no_grad():
            for restart in range(self.restarts):
                if not len(left):
                    break
                here = left.to(images.device)
                inputs, wanted = images[here], labels[here]
                result[here], broken = self._run(model, inputs, wanted, draws.take(left), restart)
                left = left[~broken.cpu()]
        return result

    def _run(
        self, model: Model, images: Tensor, labels: Tensor, draws: Any, restart: int
    ) -> tuple[Tensor, Tensor]:
        """One run: (an iterate of each example, which of them are known to fool the model)."""
        import torch

        from rbtools.attacks import steps

        current = images
        if self.start == "uniform":
            current = steps.uniform_start(images, draws, self.eps, self.norm, draw=restart)
        result = current.clone()
        broken = torch.zeros_like(labels, dtype=torch.bool)
        active = torch.arange(len(labels), device=labels.device)
        for _ in range(self.steps):
            following, logits = steps.pgd_step(
                model,
                current,
                images,
                steps.cross_entropy(labels),
                eps=self.eps,
                step_size=self.effective_step_size,
                norm=self.norm,
            )
            if self.iterate == "any":
                fooled = logits.argmax(1) != labels
                if fooled.any():
                    result[active[fooled]] = current[fooled]
                    broken[active[fooled]] = True
                    on = ~fooled
                    active, images, labels, following = active[on], images[on], labels[on], following[on]
                    if not len(active):
                        return result, broken
            current = following
        result[active] = current
        if restart + 1 < self.restarts:  # the caller judges the last iterate of the last run itself
            broken[active] = model(current).argmax(1) != labels
        return result, broken
