"""Regularisers around a method's loss: soft labels, mixed images, perturbed and averaged weights."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from rbtools.attacks.active_examples import uploaded


def distribution(labels: Tensor, classes: int, smoothing: float) -> Tensor:
    """(1 - s) * one-hot + s / K: labels int64 (N,) -> float32 (N, K)."""
    sure = nn.functional.one_hot(labels, classes).float()
    return sure * (1 - smoothing) + smoothing / classes


def mixup(images: Tensor, targets: Tensor, alpha: float, seed: int) -> tuple[Tensor, Tensor]:
    """Images (N, C, H, W) and targets (N, K), each mixed with another of the batch (Zhang et al. 2018).

    One lambda ~ Beta(alpha, alpha) per batch, as in mixup's own code and in the paper that WCI follows.
    """
    share = random.Random(seed).betavariate(alpha, alpha)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    order = uploaded(order, images.device)
    mixed = images.lerp(images[order], 1 - share)
    return mixed, targets.lerp(targets[order], 1 - share)


@contextmanager
def perturbed_weights(
    model: nn.Module,
    loss: Callable[[], Tensor] | None,
    gamma: float,
    total: Callable[[Sequence[Tensor]], None] | None = None,
) -> Iterator[None]:
    """Adversarial weight perturbation (Wu et al. 2020; csdongxian/AWP): w + gamma * |w| / |g| * g.

    g is the gradient of the loss with respect to each weight tensor; biases and BatchNorm are not perturbed.
    Inside the block the weights are perturbed, and afterwards the perturbation is subtracted, so a step made
    inside remains. The pass for g does not change BatchNorm's statistics. If several processes share a batch,
    `total` sums their gradients in place; a process without a share of the batch has no `loss`.
    """
    weights = [value for value in model.parameters() if value.requires_grad and value.ndim > 1]
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    gradients: Sequence[Tensor | None] = [None] * len(weights)
    if loss is not None:
        gradients = torch.autograd.grad(loss(), weights, allow_unused=True)
    if total is not None:
        whole = [torch.zeros_like(w) if g is None else g for w, g in zip(weights, gradients, strict=True)]
        total(whole)
        gradients = whole
    added = []
    with torch.no_grad():
        for buffer, before in kept:
            buffer.copy_(before)
        for weight, gradient in zip(weights, gradients, strict=True):
            if gradient is not None:
                length = gradient.norm().clamp_min(torch.finfo(gradient.dtype).tiny)
                step = gradient * (gamma * weight.norm() / length)
                weight.add_(step)
                added.append((weight, step))
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, step in added:
                weight.sub_(step)


class Averaged:
    """An exponential moving average of a model's weights; its buffers are the model's own."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average towards the model's weights after a step; copy its buffers."""
        for average, weights in zip(self.model.parameters(), model.parameters(), strict=True):
            average.lerp_(weights, 1 - self.decay)
        for own, buffer in zip(self.model.buffers(), model.buffers(), strict=True):
            own.copy_(buffer)


def decayed(model: nn.Module, l2: float) -> list[dict[str, object]]:
    """Parameter groups with weight decay on weights, and none on biases and BatchNorm."""
    weights = [value for value in model.parameters() if value.ndim > 1]
    others = [value for value in model.parameters() if value.ndim <= 1]
    return [{"params": weights, "weight_decay": l2}, {"params": others, "weight_decay": 0.0}]
