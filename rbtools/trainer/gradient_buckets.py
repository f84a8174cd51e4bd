"""Gradients of one training summed over several processes, in buckets, while the backward pass still runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch
from torch import nn

from rbtools.trainer import distributed
from rbtools.training.base import Loss, mode

ComputeLoss = Callable[..., Loss]


class _LossOfShare(nn.Module):
    """The loss of this process's images, as a module with the network's parameters.

    DistributedDataParallel expects one forward for each backward. A method may send images through the
    network any number of times; this module's forward is the whole of it, the attack as well. Gradients with
    respect to images, or of AWP's perturbation, do not accumulate in parameters, and start no sum.
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

        `last`: these are the last images of this process's share, so that sums over processes start.
        """
        with contextlib.nullcontext() if last else self.parallel.no_sync():
            loss: Loss = self.parallel(None, *arguments)
            (loss.value * (weight * distributed.count())).backward()  # DistributedDataParallel takes the mean
        return loss

    def backward_of_nothing(self, take_part: Callable[[], None]) -> None:
        """Take part in the sums of a batch of which this process has no share. `take_part` does so in those
        of the forward pass, at the same place as in the other processes: DistributedDataParallel has sums of
        its own before it.
        """
        self.parallel(take_part).value.backward()


def _reached(network: nn.Module, shape: Sequence[int]) -> list[nn.Parameter]:
    """The trained parameters on which the network's output depends."""
    weights = [value for value in network.parameters() if value.requires_grad]
    with mode(network, train=False), torch.enable_grad():
        value = network(torch.zeros(2, *shape, device=weights[0].device)).float().sum()
        gradients = torch.autograd.grad(value, weights, allow_unused=True)
    return [weight for weight, gradient in zip(weights, gradients, strict=True) if gradient is not None]
