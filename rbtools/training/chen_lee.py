"""Data filtering: if the attack does not raise the loss, it stops and its loss term is omitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rbtools.lazy import torch
from rbtools.training.base import Adversarial, LossTerms, Method, cross_entropy, mode

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rbtools.rng.draws import Draws


class ChenLee(Method["tuple[Tensor, Tensor, Tensor]"]):
    """A method that stops its attack if that does not raise the loss: Chen and Lee's filter, as in PRBench.

    After `warm_steps` steps of the attack the cross-entropy at x' is compared with that at x, in the mode of
    the attack. With `rule="batch"` a batch whose mean is lower at x' gets no further steps and is trained on
    CE(x) only: PRBench's code for TRADES (wellzline/PRBenchmark at 0517bae, trades_loss_efficient_2, whose m
    is `warm_steps - 1`). With `rule="example"` this is decided for each example.

    Expects a method with an attack by steps; with `rule="example"` one that attacks in eval mode, since then
    only parts of the batch go through the network.
    """

    def __init__(self, method: Adversarial, warm_steps: int, rule: str = "batch") -> None:
        self.method, self.warm_steps, self.rule = method, warm_steps, rule
        self.name, self.inner = method.name, method.inner  # type: ignore[misc]

    @property
    def passes(self) -> tuple[int, int]:
        forward, backward = self.method.passes
        return forward + 1 + (self.method.inner == "ce"), backward

    @property
    def solves_in_eval(self) -> bool:
        return self.method.solves_in_eval

    @property
    def of_whole_batches(self) -> bool:
        return self.rule == "batch"

    def inner_attack(
        self, model: nn.Module, images: Tensor, labels: Tensor, draws: Draws
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(training images, which examples are attacked further (N,), the logits at x' of that decision)."""
        method = self.method
        with torch.no_grad(), mode(model, train=not self.solves_in_eval):
            clean = model(images)
            start, objective = method.begin(images, draws), method.objective(model, images, labels, clean)
            warm = method.climb(model, images, start, objective, self.warm_steps)
            reached = model(warm)
            raised = cross_entropy(reached, labels) - cross_entropy(clean, labels)
            if self.rule == "batch":
                raised = raised.mean().expand(len(images))
            stay = raised >= 0
            trained = images.clone()
            if stay.any():
                rest = method.objective(model, images[stay], labels[stay], clean[stay])
                left = method.attack_steps - self.warm_steps
                trained[stay] = method.climb(model, images[stay], warm[stay], rest, left)
        return trained, stay, reached

    def loss(
        self, model: nn.Module, images: Tensor, labels: Tensor, inner_result: tuple[Tensor, Tensor, Tensor]
    ) -> LossTerms:
        trained, stay, reached = inner_result
        if not stay.any():
            logits = model(images)
            return LossTerms(cross_entropy(logits, labels), logits, reached)
        whole = self.method.loss(model, images, labels, trained)
        # Filtered examples are trained on x, so its logits serve as adversarial ones if there are no others.
        plain = whole.adversarial if whole.clean is None else whole.clean
        assert plain is not None
        values = torch.where(stay, whole.values, cross_entropy(plain, labels).to(whole.values))
        hit = whole.adversarial
        if hit is not None:
            hit = torch.where(
                stay[:, None], hit, reached.to(hit)
            )  # of filtered examples, at x' after the warm steps
        return LossTerms(values, whole.clean, hit)
