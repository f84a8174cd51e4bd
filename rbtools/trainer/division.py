"""Batches divided among processes or into micro-batches: differences of the results, and errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rbtools.errors import RbError
from rbtools.trainer import distributed

if TYPE_CHECKING:
    import torch
    from torch import nn

    from rbtools.trainer.recipe import Recipe
    from rbtools.training.base import Method


def notices(
    recipe: Recipe, method: Method[Any], model: nn.Module, name: str, device: torch.device
) -> Iterator[str]:
    """A sentence for each way in which the result differs from undivided batches in one process."""
    processes, size, piece = distributed.count(), recipe.batch_size, recipe.micro_batch
    whole = method.of_whole_batches or "wci" in recipe.regularize
    if processes > 1 and whole:
        yield (
            f"{method.name} with these options depends on the images in a process's share of a batch:"
            f" {processes} processes change the result."
        )
    if processes > 1 and device.type == "cpu" and distributed.has_batchnorm(model):
        yield (
            f"{name} has BatchNorm, which sees each process's share of a batch on the CPU: {processes}"
            " processes change the result."
        )
    if piece is None or piece >= size:
        return
    if distributed.has_batchnorm(model):
        yield (
            f"{name} has BatchNorm, which sees {piece} images at a time instead of {size}: --micro-batch"
            " changes the result, not only the memory."
        )
    if whole:
        yield (
            f"{method.name} with these options depends on the images in a piece, {piece} instead of {size}:"
            " --micro-batch changes the result, not only the memory."
        )


def check_pieces(sizes: Sequence[int], micro_batch: int | None, processes: int) -> None:
    """Raise RbError if synchronised BatchNorm is used and processes would make different numbers of passes
    for a batch, because such a BatchNorm waits for all processes in every pass.

    `sizes` are the sizes of an epoch's batches. Each process has every `processes`-th image of a batch, in
    pieces of at most `micro_batch` images.
    """
    for size in dict.fromkeys(sizes):
        shares = {len(range(rank, size, processes)) for rank in range(processes)}
        pieces = {_pieces(share, micro_batch) for share in shares}
        if len(pieces) == 1 and min(shares) > 0:
            continue
        problem = f"An epoch has a batch of {size} images. Each of {processes} GPUs has {min(shares)}"
        expected = f"Use a --batch-size that leaves a last batch of {processes} images or more."
        if min(shares) > 0:
            problem += f" or {max(shares)}: {min(pieces)} or {max(pieces)} pieces of at most {micro_batch}"
            expected = "Use another --micro-batch, or a --batch-size that the GPUs share evenly."
        raise RbError(f"{problem}. BatchNorm over all GPUs waits for each of them in every pass. {expected}")


def _pieces(share: int, micro_batch: int | None) -> int:
    """The number of pieces of a share. A last piece of a single image joins the piece before it."""
    if micro_batch is None or share == 0:
        return min(share, 1)
    whole, remainder = divmod(share, micro_batch)
    return whole + (remainder > 1 or (remainder == 1 and (whole == 0 or micro_batch == 1)))
