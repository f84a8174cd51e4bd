"""Data filtering: if the attack does not raise the loss, it stops and its loss term is omitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rbtools.attacks.active_examples import wide
from rbtools.lazy import Tensor, nn, torch
from rbtools.rng.draws import Draws
from rbtools.training.base import Adversarial, LossTerms, Method, cross_entropy, mode


class ChenLee(Method[tuple[Tensor, Tensor, Tensor]]):
    """A method that stops its attack if that does not raise the loss: Chen and Lee's filter, as in PRBench.

    After `warm_steps` steps of the attack the cross-entropy at x' is compared with that at x, in the mode of
    the attack. With `rule="batch"` a batch whose mean is lower at x' gets no further steps and is trained on
    CE(x) only: PRBench's code for TRADES (wellzline/PRBenchmark at 0517bae, trades_loss_efficient_2, whose m
    is `warm_steps - 1`). With `rule="example"` this is decided for each example.

    Expects a method with an attack by steps; with `rule="example"` one that attacks in eval mode, since then
    only parts of the batch go through the network.

    On a GPU the decisions are not read, because that would wait for the device: all examples are attacked to
    the end, and the results and BatchNorm's statistics of filtered ones are discarded. So the training images
    are the same.
    """

    def __init__(self, method: Adversarial, warm_steps: int, rule: str = "batch") -> None:
        self.method, self.warm_steps, self.rule = method, warm_steps, rule
        self.name, self.inner, self.inner_mode = method.name, method.inner, method.inner_mode  # type: ignore[misc]

    @property
    def passes(self) -> tuple[int, int]:
        forward, backward = self.method.passes
        return forward + 1 + (self.method.inner == "ce"), backward

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
            stay, left = raised >= 0, method.attack_steps - self.warm_steps
            if images.is_cuda:
                buffers = _statistics(model)
                before = [buffer.clone() for buffer in buffers]
                remaining = method.objective(model, images, labels, clean)
                attacked = method.climb(model, images, warm, remaining, left)
                _restore_unless(stay.any(), buffers, before)
                return torch.where(wide(stay, images), attacked, images), stay, reached
            trained = images.clone()
            if stay.any():
                remaining = method.objective(model, images[stay], labels[stay], clean[stay])
                trained[stay] = method.climb(model, images[stay], warm[stay], remaining, left)
        return trained, stay, reached

    def loss(
        self, model: nn.Module, images: Tensor, labels: Tensor, inner_result: tuple[Tensor, Tensor, Tensor]
    ) -> LossTerms:
        trained, stay, reached = inner_result
        if images.is_cuda:
            with _one_pass_unless(stay.any(), model):
                terms = self.method.loss(model, images, labels, trained)
        elif stay.any():
            terms = self.method.loss(model, images, labels, trained)
        else:
            logits = model(images)
            return LossTerms(cross_entropy(logits, labels), logits, reached)
        # Filtered examples are trained on x, so its logits serve as adversarial ones if there are no others.
        plain = terms.adversarial if terms.clean is None else terms.clean
        assert plain is not None
        values = torch.where(stay, terms.values, cross_entropy(plain, labels).to(terms.values))
        hit = terms.adversarial
        if hit is not None:
            hit = torch.where(
                stay[:, None], hit, reached.to(hit)
            )  # logits of filtered examples at x' after the warm steps
        return LossTerms(values, terms.clean, hit)


def _statistics(model: nn.Module) -> list[Tensor]:
    """The buffers that a pass may update: those of modules in training mode."""
    return [
        buffer for module in model.modules() if module.training for buffer in module.buffers(recurse=False)
    ]


def _restore_unless(keep: Tensor, buffers: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    """Set the buffers back to `before` if `keep` (bool, on the device) is false."""
    with torch.no_grad():
        for buffer, value in zip(buffers, before, strict=True):
            # As .data: autograd keeps BatchNorm's statistics and refuses a backward pass after a change, but
            # in training mode that pass does not use them.
            buffer.data.copy_(torch.where(keep, buffer, value))


@contextmanager
def _one_pass_unless(keep: Tensor, model: nn.Module) -> Iterator[None]:
    """Inside the block only the first pass updates buffers, unless `keep` (bool, on the device) is true: a
    filtered example is trained on its clean image alone, in a single pass.
    """
    buffers: list[Tensor] = []
    first: list[Tensor] = []
    passes = 0

    def before_pass(*_: object) -> None:
        nonlocal passes
        passes += 1
        if passes == 2:
            buffers.extend(_statistics(model))
            first.extend(buffer.clone() for buffer in buffers)

    handle = model.register_forward_pre_hook(before_pass)
    try:
        yield
    finally:
        handle.remove()
    _restore_unless(keep, buffers, first)
