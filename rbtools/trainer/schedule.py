"""The steps of a training: batches, their pieces, the learning rate's schedule, deterministic algorithms."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rbtools.trainer.init import mixed_seed
from rbtools.trainer.recipe import CYCLED_MOMENTUM, Recipe

if TYPE_CHECKING:
    from rbtools.rng.draws import Draws
    from rbtools.training.base import Loss, Method

Schedule = torch.optim.lr_scheduler.LRScheduler


@contextlib.contextmanager
def deterministic(wanted: bool) -> Any:
    """Use only deterministic algorithms, if `wanted`."""
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]


def batches(order: Tensor, batch_size: int) -> list[Tensor]:
    """The batches of an epoch. The last one may be smaller; a last single image joins the batch before it,
    since BatchNorm has no variance of one image (unless all batches have one).
    """
    pieces = list(order.split(batch_size))
    if len(pieces) > 1 and len(pieces[-1]) == 1 < batch_size:
        pieces[-2:] = [torch.cat(pieces[-2:])]
    return pieces


@dataclass
class Piece:
    """The images (N, C, H, W) of one backward pass, with labels (N,) or distributions (N, K).

    method: as it is in this step. weight: their share of the batch. awp: gamma, if the step's weights are
    perturbed by AWP; perturbed: takes that perturbation, until the step is made. last: no other piece of the
    batch follows in this process. loss: to be set.
    """

    images: Tensor
    targets: Tensor
    draws: Draws
    method: Method[Any]
    weight: float
    awp: float | None
    perturbed: contextlib.ExitStack
    last: bool = True
    loss: Loss | None = None


def has_batchnorm(model: nn.Module) -> bool:
    """Whether a network's output for an image depends on the others of its batch."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def drawn_step(recipe: Recipe, steps: int, seed: int) -> int | None:
    """The step, of so many, whose initial weights a training returns with --select random; else None."""
    if recipe.output != "random" or not steps:
        return None
    numbers = torch.Generator().manual_seed(mixed_seed(seed, "output"))
    return int(torch.randint(steps, (), generator=numbers))


PER_STEP = ("onecycle", "piecewise")
"""Schedules that change after every step; the others change after every epoch."""


def schedule(optimizer: torch.optim.Optimizer, recipe: Recipe, batches: int) -> Schedule:
    """The learning rate's schedule of a recipe, for `batches` per epoch."""
    schedulers = torch.optim.lr_scheduler
    epochs = max(recipe.epochs, 1)
    if recipe.schedule == "onecycle":
        highest, lowest, _ = CYCLED_MOMENTUM
        return schedulers.OneCycleLR(
            optimizer,
            max_lr=recipe.lr,
            total_steps=epochs * batches,
            base_momentum=lowest,
            max_momentum=highest,
        )
    if recipe.schedule == "step":
        return schedulers.MultiStepLR(optimizer, list(recipe.milestones), gamma=recipe.decay)
    if recipe.schedule == "piecewise":
        return schedulers.LambdaLR(
            optimizer,
            lambda step: recipe.decay ** sum((step + 1) / batches >= epoch for epoch in recipe.milestones),
        )
    if recipe.schedule == "cosine":
        return schedulers.CosineAnnealingLR(optimizer, T_max=epochs)
    return schedulers.ConstantLR(optimizer, factor=1.0)
