"""What dividing a batch, among processes or into micro-batches, changes in the result of a training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rbtools.errors import RbError
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
            f"{name} has BatchNorm, which sees {piece} images at a time instead of {size}: micro of"
            " --batch-size"
            " changes the result, not only the memory."
        )
    if method.of_whole_batches:
        yield (
            f"{method.name} with these options depends on the images in a piece, {piece} instead of {size}:"
            " micro of --batch-size changes the result, not only the memory."
        )


def check_pieces(sizes: Sequence[int], micro_batch: int | None, processes: int) -> None:
    """Raise RbError where processes would send another number of pieces of a batch through a network whose
    BatchNorm is synchronised: it waits for all processes in every pass, and one without images makes none.

    sizes: those of the batches of an epoch. Each process has every `processes`-th image of a batch, in pieces
    of at most `micro_batch`.
    """
    for size in dict.fromkeys(sizes):
        shares = {len(range(rank, size, processes)) for rank in range(processes)}
        pieces = {_pieces(share, micro_batch) for share in shares}
        if len(pieces) == 1 and min(shares) > 0:
            continue
        problem = f"An epoch has a batch of {size} images, of which a GPU of {processes} has {min(shares)}"
        expected = f"Use a --batch-size that leaves a last batch of {processes} images or more."
        if min(shares) > 0:
            problem += f" or {max(shares)}: {min(pieces)} or {max(pieces)} pieces of micro={micro_batch}"
            expected = "Use another micro of --batch-size, or a --batch-size that the GPUs share evenly."
        raise RbError(f"{problem}. BatchNorm over all GPUs waits for each of them in every pass. {expected}")


def _pieces(share: int, micro_batch: int | None) -> int:
    """How many pieces `schedule.batches` makes of a share: a last single image joins the piece before it."""
    if micro_batch is None or share == 0:
        return min(share, 1)
    whole, rest = divmod(share, micro_batch)
    return whole + (rest > 1 or (rest == 1 and (whole == 0 or micro_batch == 1)))
