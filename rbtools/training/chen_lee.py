"""Data filtering: examples that need no more of the attack leave it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rbtools.training.base import Adversarial, Method, Terms, cross_entropy, mode, truth

if TYPE_CHECKING:
    from torch import Tensor, nn


class ChenLee(Method):
    """A method whose attack spends its steps on some examples: Chen and Lee's filter, as understood here.

    Their paper could not be had; PRBench uses the filter inside TRADES and says that examples which need no
    attack are found cheaply, with m warm steps before. Here: after `warm_steps` steps on all of a batch, an
    example that is classified wrong as it is, or wrong already at its x', leaves: it gets no further step,
    and its loss is CE(x) instead of the method's. With `warm_steps=0` that is asked at the attack's start.

    Expects a method with an attack by steps whose model is in eval mode during it.
    """

    def __init__(self, method: Adversarial, warm_steps: int) -> None:
        self.method, self.warm_steps = method, warm_steps
        self.name, self.inner = method.name, method.inner  # type: ignore[attr-defined,misc]

    @property
    def passes(self) -> tuple[int, int]:
        forward, backward = self.method.passes
        return forward + 1 + (self.method.inner == "ce"), backward

    @property
    def solves_in_eval(self) -> bool:
        return True

    def solve(
        self, model: nn.Module, images: Tensor, labels: Tensor, draws: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(what is trained on, which examples stay (N,), the logits at x' when that was decided)."""
        import torch

        method, classes = self.method, truth(labels)
        with torch.no_grad(), mode(model, train=False):
            clean = model(images)
            warm = method.climb(
                model,
                images,
                method.begin(images, draws),
                method.objective(model, images, labels, clean),
                self.warm_steps,
            )
            found = model(warm)
            stay = (clean.argmax(1) == classes) & (found.argmax(1) == classes)
            trained = images.clone()
            if stay.any():
                rest = method.objective(model, images[stay], labels[stay], clean[stay])
                left = method.attack_steps - self.warm_steps
                trained[stay] = method.climb(model, images[stay], warm[stay], rest, left)
        return trained, stay, found

    def terms(self, model: nn.Module, images: Tensor, labels: Tensor, solved: Any) -> Terms:
        import torch

        trained, stay, found = solved
        whole = self.method.terms(model, images, labels, trained)
        # Who left is trained on x, so its logits there are the adversarial ones where no others are.
        plain = whole.adversarial if whole.clean is None else whole.clean
        assert plain is not None
        values = torch.where(stay, whole.values, cross_entropy(plain, labels).to(whole.values))
        hit = whole.adversarial
        if hit is not None:
            hit = torch.where(stay[:, None], hit, found.to(hit))  # what is told: x' as far as it went
        return Terms(values, whole.clean, hit)
