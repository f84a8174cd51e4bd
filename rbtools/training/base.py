"""What training methods share: the loss of a batch as they return it, and the inner attack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rbtools.registry import param

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rbtools.attacks.steps import Objective

NOISE = 0.001
"""Standard deviation of the start around the image where the inner problem has no gradient there."""


class Loss(NamedTuple):
    """The loss of a batch, and the logits that were computed on the way.

    value: scalar with a graph to the parameters. clean_logits, adversarial_logits: detached (N, K)
    in training mode, before the update; None where the method has no use for them.
    """

    value: Tensor
    clean_logits: Tensor | None = None
    adversarial_logits: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Adversarial:
    """A method that trains on the result of an inner attack in the L-infinity ball.

    The inner attack is x' <- clip[0,1](clip(x' + step_size * sign g, x - eps, x + eps)), x' detached.
    `inner` says what it ascends: "ce", the cross-entropy with the labels, or "kl", the divergence
    KL(p(x) || p(x')) with p(x) held constant. `start` says where: "uniform" in the ball, or "noise",
    x + 0.001 * N(0, 1) (the divergence has no gradient at x itself).

    In `inner_mode` "eval" BatchNorm uses its running statistics during the attack and leaves them
    alone, and dropout is off; in "train" every iterate moves the statistics.
    """

    inner: ClassVar[str | None]
    start: ClassVar[str]

    eps: float = param(8 / 255, "Radius of the L-infinity ball.", unit="eps", check="non-negative")
    step_size: float = param(
        2 / 255, "Length of a step of the inner attack.", unit="eps", check="non-negative"
    )
    attack_steps: int = param(10, "Number of steps of the inner attack.", check="positive")
    inner_mode: str = param("eval", "Mode of the model during the inner attack.", choices=("eval", "train"))

    @property
    def inner_passes(self) -> tuple[int, int]:
        """(forward, backward) passes per image of the inner attack."""
        return self.attack_steps + (self.inner == "kl"), self.attack_steps

    def perturb(self, model: nn.Module, images: Tensor, labels: Tensor, draws: Any) -> Tensor:
        """Solve the inner problem; return detached images in the ball and in [0, 1].

        The model comes back in the mode of each of its modules, with no gradient on any parameter.
        """
        import torch

        from rbtools.attacks import steps

        with torch.no_grad(), mode(model, train=self.inner_mode == "train"):
            objective = self._objective(model, images, labels)
            perturbed = self._start(images, draws)
            for _ in range(self.attack_steps):
                perturbed, _ = steps.pgd_step(
                    model, perturbed, images, objective, eps=self.eps, step_size=self.step_size
                )
        return perturbed

    def _objective(self, model: nn.Module, images: Tensor, labels: Tensor) -> Objective:
        from rbtools.attacks import steps

        if self.inner == "kl":
            clean = model(images)
            return lambda logits: divergence(clean, logits)
        return steps.cross_entropy(labels)

    def _start(self, images: Tensor, draws: Any) -> Tensor:
        from rbtools.attacks import steps

        if self.start == "noise":
            # Not clipped, as in the authors' code: the first step brings it into the ball.
            noise: Tensor = draws.normal(tuple(images.shape[1:])).to(images)
            return images + NOISE * noise
        return steps.uniform_start(images, draws, self.eps)


def divergence(clean: Tensor, perturbed: Tensor) -> Tensor:
    """KL(p(x) || p(x')) from logits: the sum over classes, one value an example (N,).

    Differentiable in both arguments, in float32 or wider. It works on log-probabilities throughout,
    since the derivative of p log p by p is NaN where a probability has underflowed to 0.
    """
    import torch.nn.functional as F

    from rbtools.attacks.steps import widen

    log_clean = F.log_softmax(widen(clean), dim=1)
    log_perturbed = F.log_softmax(widen(perturbed), dim=1)
    return F.kl_div(log_perturbed, log_clean, reduction="none", log_target=True).sum(1)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy of a batch, in float32 or wider."""
    import torch.nn.functional as F

    from rbtools.attacks.steps import widen

    return F.cross_entropy(widen(logits), labels)


@contextmanager
def mode(model: nn.Module, *, train: bool) -> Iterator[None]:
    """Put the model into a mode, and afterwards each module back into the one it was in.

    Module by module, since a BatchNorm that the user froze must not wake up.
    """
    before = [(module, module.training) for module in model.modules()]
    if not train:
        model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
