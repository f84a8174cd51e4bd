"""How a training is cut into steps: batches, the learning rate's schedule, which algorithms may run."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from rbtools.trainer.recipe import CYCLED_MOMENTUM, Recipe

Schedule = torch.optim.lr_scheduler.LRScheduler


@contextlib.contextmanager
def deterministic(wanted: bool) -> Any:
    """Only algorithms that give the same bits every time, where that was asked for."""
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
    """The batches of an epoch. The last one is kept though smaller, but not of one image where others have
    more: BatchNorm has no variance for that, so it joins the batch before it.
    """
    found = list(order.split(batch_size))
    if len(found) > 1 and len(found[-1]) == 1 < batch_size:
        found[-2:] = [torch.cat(found[-2:])]
    return found


def has_batchnorm(model: nn.Module) -> bool:
    """Whether what a network does to an image in a batch depends on the others there."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


PER_STEP = ("onecycle", "piecewise")
"""Schedules that move after every step; the others do after every epoch."""


def schedule(optimizer: torch.optim.Optimizer, how: Recipe, batches: int) -> Schedule:
    """The learning rate's schedule of a recipe, for so many batches an epoch."""
    schedulers = torch.optim.lr_scheduler
    epochs = max(how.epochs, 1)
    if how.schedule == "onecycle":
        highest, lowest, _ = CYCLED_MOMENTUM
        return schedulers.OneCycleLR(
            optimizer,
            max_lr=how.lr,
            total_steps=epochs * batches,
            base_momentum=lowest,
            max_momentum=highest,
        )
    if how.schedule == "step":
        return schedulers.MultiStepLR(optimizer, list(how.milestones), gamma=how.decay)
    if how.schedule == "piecewise":
        return schedulers.LambdaLR(
            optimizer,
            lambda step: how.decay ** sum((step + 1) / batches >= epoch for epoch in how.milestones),
        )
    if how.schedule == "cosine":
        return schedulers.CosineAnnealingLR(optimizer, T_max=epochs)
    return schedulers.ConstantLR(optimizer, factor=1.0)
