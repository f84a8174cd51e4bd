"""One training run in several processes started by torchrun; each process computes a share of every batch.

Process 0 reads records, uses the store, writes the output, and broadcasts each training run that must be
computed. Importing this module does not import torch.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools.errors import RbError
from rbtools.execution.run import Run
from rbtools.lazy import distributed, nn, torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.trainer.recipe import Recipe
    from rbtools.training.base import Method


class Order(NamedTuple):
    """A training run that all processes compute together."""

    task: Any
    seed: int
    threads: int
    key: str
    state: bytes | None


def count() -> int:
    """Return the number of processes that torchrun started, or 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def here() -> int:
    """Return the number of processes of the training run on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if count() > 1 else 1


def rank() -> int:
    return int(os.environ["RANK"]) if count() > 1 else 0


def local_rank() -> int:
    """Return the rank of this process among the processes on this machine, which determines its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0")) if count() > 1 else 0


@contextlib.contextmanager
def process_group(run: Run) -> Iterator[bool]:
    """Join the process group. Yields true in process 0; the other processes end when it leaves the block."""
    if count() == 1:
        yield True
        return
    on_gpu = run.placement.device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(local_rank() % torch.cuda.device_count())
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    try:
        yield rank() == 0
        if rank() == 0:
            _send(None)
    finally:
        # After an error the other processes still run; torchrun ends them, so do not wait.
        distributed.destroy_process_group()


def broadcast(order: Order) -> None:
    if count() > 1:
        _send(order)


def _send(order: Order | None) -> None:
    distributed.broadcast_object_list([order], src=0)


def receive() -> Order | None:
    """Wait for the next training run from process 0. Returns None if there are no more training runs."""
    box: list[Any] = [None]
    distributed.broadcast_object_list(box, src=0)
    order: Order | None = box[0]
    return order


def share(ids: Tensor) -> Tensor:
    """This process's share of a batch: every n-th example if there are n processes."""
    return ids[rank() :: count()]


def sum_of(values: Tensor) -> Tensor:
    """Sum `values` over all processes, in place."""
    if count() > 1:
        distributed.all_reduce(values)
    return values


def sum_all(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its sum over all processes. All tensors are sent in one message."""
    flat = sum_of(torch.cat([one.flatten() for one in tensors]))
    for one, total in zip(tensors, flat.split([one.numel() for one in tensors]), strict=True):
        one.copy_(total.view_as(one))


def sum_gradients(model: nn.Module) -> None:
    """Sum the gradients of a model's weights over all processes; each has the gradients of its share."""
    if count() > 1:
        sum_all([weight.grad for weight in model.parameters() if weight.grad is not None])


def share_buffers(model: nn.Module) -> None:
    """Copy the buffers (BatchNorm's statistics) of process 0 to all processes."""
    if count() > 1:
        for buffer in model.buffers():
            distributed.broadcast(buffer, src=0)


def has_batchnorm(model: nn.Module) -> bool:
    """Whether a network's output for an image depends on the other images of its batch."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


# --- batches divided among processes or into micro-batches: differences of the results, and errors ---------


def notices(
    recipe: Recipe, method: Method[Any], model: nn.Module, name: str, device: torch.device
) -> Iterator[str]:
    """Yield a sentence for each reason why the result differs from complete batches in one process."""
    processes, size, piece = count(), recipe.batch_size, recipe.micro_batch
    whole = method.of_whole_batches or "wci" in recipe.regularize
    if processes > 1 and whole:
        yield (
            f"With these options, {method.name} depends on all images in a process's share of a batch, so"
            f" {processes} processes change the result."
        )
    if processes > 1 and device.type == "cpu" and has_batchnorm(model):
        yield (
            f"{name} has BatchNorm, which on the CPU uses only each process's share of a batch, so"
            f" {processes} processes change the result."
        )
    if piece is None or piece >= size:
        return
    if has_batchnorm(model):
        yield (
            f"{name} has BatchNorm, which uses {piece} images at a time instead of {size}, so --micro-batch"
            " changes the result and not only the memory."
        )
    if whole:
        yield (
            f"With these options, {method.name} depends on all images in a piece, {piece} instead of {size},"
            " so --micro-batch changes the result and not only the memory."
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
        problem = f"An epoch has a batch of {size} images. Each of {processes} GPUs gets {min(shares)}"
        expected = f"Use a --batch-size with which the last batch has {processes} images or more."
        if min(shares) > 0:
            problem += f" or {max(shares)}, in {min(pieces)} or {max(pieces)} pieces of at most {micro_batch}"
            expected = "Use another --micro-batch, or a --batch-size that the GPUs share evenly."
        raise RbError(f"{problem}. In every pass, synchronised BatchNorm waits for all GPUs. {expected}")


def _pieces(share: int, micro_batch: int | None) -> int:
    """The number of pieces of a share. A last piece of a single image joins the piece before it."""
    if micro_batch is None or share == 0:
        return min(share, 1)
    whole, remainder = divmod(share, micro_batch)
    return whole + (remainder > 1 or (remainder == 1 and (whole == 0 or micro_batch == 1)))
