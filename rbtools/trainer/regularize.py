"""Regularisers for any training method: soft labels, mixed images, perturbed weights and averaged weights."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from rbtools.attacks.active_examples import uploaded


def distribution(labels: Tensor, classes: int, smoothing: float) -> Tensor:
    """Maps labels int64 (N,) to (1 - s) * one-hot + s / K, float32 (N, K)."""
    sure = nn.functional.one_hot(labels, classes).float()
    return sure * (1 - smoothing) + smoothing / classes


def mixup(images: Tensor, targets: Tensor, alpha: float, seed: int) -> tuple[Tensor, Tensor]:
    """Images (N, C, H, W) and targets (N, K), each mixed with another pair of the batch (Zhang et al. 2018).
    There is one lambda ~ Beta(alpha, alpha) per batch, as in mixup's code."""
    share = random.Random(seed).betavariate(alpha, alpha)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    order = uploaded(order, images.device)
    mixed = images.lerp(images[order], 1 - share)
    return mixed, targets.lerp(targets[order], 1 - share)


@dataclass(frozen=True)
class AWPAscent:
    """Adversarial weight perturbation (Wu et al. 2020; csdongxian/AWP): each tensor w moves by gamma |w| g /
    |g|.

    Biases and BatchNorm's weights do not move. The optimiser makes its step, with weight decay, at the
    perturbed weights, and the perturbation is subtracted afterwards. BatchNorm's statistics come from the
    second pass.
    """

    gamma: float
    step_inside: ClassVar[bool] = True

    def moves(self, weight: Tensor) -> bool:
        return weight.ndim > 1

    def lengths(self, weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
        return [self.gamma * weight.norm() for weight in weights]


@dataclass(frozen=True)
class SAMAscent:
    """Sharpness-aware minimisation (Foret et al. 2021; davda54/sam): all weights move by rho g / |g|.

    The optimiser makes its step from the weights before the perturbation. BatchNorm's statistics come from
    the first pass.
    """

    rho: float
    step_inside: ClassVar[bool] = False

    def moves(self, weight: Tensor) -> bool:
        return True

    def lengths(self, weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the step length of each weight tensor. The squares of the lengths sum to rho^2."""
        each = torch.stack([gradient.norm() for gradient in gradients])
        whole = each.norm().clamp_min(torch.finfo(each.dtype).tiny)
        return list(self.rho * each / whole)


Ascent: TypeAlias = AWPAscent | SAMAscent
"""How the weights of a step are perturbed before its gradient is taken."""


@contextmanager
def perturbed_weights(
    model: nn.Module,
    loss: Callable[[], Tensor] | None,
    ascent: Ascent,
    total: Callable[[Sequence[Tensor]], None] | None = None,
) -> Iterator[None]:
    """Inside the block, the weights are perturbed along the gradient g of the loss.

    With `ascent.step_inside`, a step that the optimiser makes inside the block is kept, and only the
    perturbation is subtracted afterwards. Otherwise the weights from before the block are restored. `total`
    sums the gradients of several processes in place. In a process without images, `loss` is None.
    """
    weights = [value for value in model.parameters() if value.requires_grad and ascent.moves(value)]
    statistics = _copies(model.buffers())
    gradients: Sequence[Tensor | None] = [None] * len(weights)
    if loss is not None:
        gradients = torch.autograd.grad(loss(), weights, allow_unused=True)
    if total is not None:
        whole = [torch.zeros_like(w) if g is None else g for w, g in zip(weights, gradients, strict=True)]
        total(whole)
        gradients = whole
    reached = [(w, g) for w, g in zip(weights, gradients, strict=True) if g is not None]
    added: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad():
        if ascent.step_inside:
            _restore(statistics)
        else:
            statistics = _copies(model.buffers())
        before = [] if ascent.step_inside else _copies(weight for weight, _ in reached)
        if reached:
            lengths = ascent.lengths(*zip(*reached, strict=True))
            for (weight, gradient), length in zip(reached, lengths, strict=True):
                size = gradient.norm().clamp_min(torch.finfo(gradient.dtype).tiny)
                step = gradient * (length / size)
                weight.add_(step)
                added.append((weight, step))
    try:
        yield
    finally:
        with torch.no_grad():
            if ascent.step_inside:
                for moved, step in added:
                    moved.sub_(step)
            else:
                _restore([*before, *statistics])


def _copies(tensors: Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return [(tensor, tensor.detach().clone()) for tensor in tensors]


def _restore(copies: Iterable[tuple[Tensor, Tensor]]) -> None:
    for tensor, before in copies:
        tensor.copy_(before)


def averaged(model: nn.Module, decay: float) -> AveragedModel:
    """Return an exponential moving average of a model's weights, with the buffers of the model."""
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay)).requires_grad_(False)
    average.n_averaged.fill_(1)  # at 0 the first update would replace the weights
    return average


def decayed(model: nn.Module, l2: float) -> list[dict[str, object]]:
    """Return parameter groups: weights with weight decay, and biases and BatchNorm without."""
    weights = [value for value in model.parameters() if value.ndim > 1]
    others = [value for value in model.parameters() if value.ndim <= 1]
    return [{"params": weights, "weight_decay": l2}, {"params": others, "weight_decay": 0.0}]
