"""What dividing a batch, among processes or into micro-batches, changes in the result of a training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rbtools.trainer import distributed
from rbtools.trainer.schedule import has_batchnorm

if TYPE_CHECKING:
    import torch
    from torch import nn

    from rbtools.trainer.recipe import Recipe
    from rbtools.training.base import Method


def notices(
    recipe: Recipe, method: Method[Any], model: nn.Module, name: str, device: torch.device
) -> Iterator[str]:
    """A sentence for each way in which the result is another than that of whole batches in one process.

    name: that of the network.
    """
    processes, size, piece = distributed.count(), recipe.batch_size, recipe.micro_batch
    if processes > 1 and method.of_whole_batches:
        yield (
            f"{method.name} with these options depends on the images in a process's share of a batch:"
            f" {processes} processes change the result."
        )
    if processes > 1 and device.type == "cpu" and has_batchnorm(model):
        yield (
            f"{name} has BatchNorm, which sees each process's share of a batch on the CPU: {processes}"
            " processes change the result."
        )
    if piece is None or piece >= size:
        return
    if has_batchnorm(model):
        yield (
            f"{name} has BatchNorm, which sees {piece} images at a time instead of {size}: --micro-batch"
            " changes the result, not only the memory."
        )
    if method.of_whole_batches:
        yield (
            f"{method.name} with these options depends on the images in a piece, {piece} instead of {size}:"
            " --micro-batch changes the result, not only the memory."
        )
