"""Batches divided among processes or into micro-batches: differences in results, and the sums of
gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rbtools.errors import RbError
from rbtools.trainer import distributed
from rbtools.training.base import Loss, Method, mode

if TYPE_CHECKING:
    from rbtools.trainer.recipe import Recipe

ComputeLoss = Callable[..., Loss]


def notices(
    recipe: Recipe, method: Method[Any], model: nn.Module, name: str, device: torch.device
) -> Iterator[str]:
    """A sentence for each way in which the result differs from that of undivided batches in one process.

    name: that of the network.
    """
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
            f"{name} has BatchNorm, which sees {piece} images at a time instead of {size}: micro of"
            " --batch-size"
            " changes the result, not only the memory."
        )
    if whole:
        yield (
            f"{method.name} with these options depends on the images in a piece, {piece} instead of {size}:"
            " --micro-batch changes the result, not only the memory."
        )


def check_pieces(sizes: Sequence[int], micro_batch: int | None, processes: int) -> None:
    """Raise RbError if, with synchronised BatchNorm, processes would make different numbers of passes for a
    batch: such a BatchNorm waits for all processes in every pass.

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
            expected = "Use another --micro-batch, or a --batch-size that the GPUs share evenly."
        raise RbError(f"{problem}. BatchNorm over all GPUs waits for each of them in every pass. {expected}")


def _pieces(share: int, micro_batch: int | None) -> int:
    """How many pieces `schedule.batches` makes of a share: a last single image joins the piece before it."""
    if micro_batch is None or share == 0:
        return min(share, 1)
    whole, remainder = divmod(share, micro_batch)
    return whole + (remainder > 1 or (remainder == 1 and (whole == 0 or micro_batch == 1)))


class _LossOfShare(nn.Module):
    """The loss of this process's images, as a module with the network's parameters.

    DistributedDataParallel expects one forward for each backward. A method may send images through the
    network any number of times; this module's forward contains them all, including the attack. Gradients with
    respect to images, or to AWP's perturbation, do not accumulate in parameters, and start no sum over
    processes.
    """

    def __init__(self, weights: Sequence[nn.Parameter], compute: ComputeLoss) -> None:
        super().__init__()
        self.weights, self.compute = nn.ParameterList(weights), compute

    def forward(self, take_part: Callable[[], None] | None, *arguments: object) -> Loss:
        if take_part is None:
            return self.compute(*arguments)
        take_part()
        return Loss(torch.stack([weight.sum() for weight in self.weights]).sum() * 0)


class GradientBuckets:
    """Runs the loss and its backward pass, so that `grad` of each parameter becomes the sum over all
    processes: torch's DistributedDataParallel, which sends a bucket of gradients as soon as it is full.

    It has parameters only. Buffers stay those of each process: BatchNorm's statistics over a batch are
    SyncBatchNorm's on GPUs, and the trainer copies process 0's after each epoch. Parameters that no gradient
    reaches (dead edges of a cell) are left out, as no process would ever send their bucket. `shape`: that of
    an image.
    """

    def __init__(self, network: nn.Module, compute: ComputeLoss, shape: Sequence[int]) -> None:
        self.parallel = nn.parallel.DistributedDataParallel(
            _LossOfShare(_reached(network, shape), compute), gradient_as_bucket_view=True
        )

    def backward(self, *arguments: object, weight: float, last: bool) -> Loss:
        """The loss of some images; `weight` times its gradient is added to the parameters'.

        `last`: these are the last images of this process's share, after which the sums over processes start.
        """
        with contextlib.nullcontext() if last else self.parallel.no_sync():
            loss: Loss = self.parallel(None, *arguments)
            # because DistributedDataParallel averages
            (loss.value * (weight * distributed.count())).backward()
        return loss

    def backward_of_nothing(self, take_part: Callable[[], None]) -> None:
        """Join the collectives of a batch although this process has no examples. `take_part` joins those of
        the forward pass, in the order of the other processes: after DistributedDataParallel's first ones.
        """
        self.parallel(take_part).value.backward()


def _reached(network: nn.Module, shape: Sequence[int]) -> list[nn.Parameter]:
    """The trained parameters on which the network's output depends."""
    weights = [value for value in network.parameters() if value.requires_grad]
    with mode(network, train=False), torch.enable_grad():
        value = network(torch.zeros(2, *shape, device=weights[0].device)).float().sum()
        gradients = torch.autograd.grad(value, weights, allow_unused=True)
    return [weight for weight, gradient in zip(weights, gradients, strict=True) if gradient is not None]
