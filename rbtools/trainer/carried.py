"""What a training method keeps of each example from epoch to epoch: its memory, shared by processes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rbtools.datasets import streaming
from rbtools.errors import RbError
from rbtools.lazy import torch
from rbtools.trainer import distributed

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.training.base import Method

_BYTES = 2  # of a float16


def allocate(method: Method, examples: int, shape: Sequence[int], device: torch.device) -> dict[str, Tensor]:
    """Zeros, float16 (examples, C, H, W), for each name of `method.carried`: on the device where they take
    at most half of its free memory, else in that of the machine. Raises RbError where they do not fit there.
    """
    if not method.carried:
        return {}
    size = len(method.carried) * examples * math.prod(shape) * _BYTES
    if device.type == "cuda" and not streaming.fits(size, device):
        device = torch.device("cpu")
    limit = streaming.limit()
    if device.type == "cpu" and size > limit:
        raise RbError(
            f"{method.name} keeps {size / 2**30:.1f} GiB of {examples} images from epoch to epoch, more than"
            f" half of the free memory ({limit / 2**30:.1f} GiB). Use n-fgsm, which keeps nothing."
        )
    return {
        name: torch.zeros(examples, *shape, dtype=torch.float16, device=device) for name in method.carried
    }


def share(state: Mapping[str, Tensor], batches: Iterable[Tensor]) -> None:
    """After an epoch of these batches give every process what the others wrote, each for its share."""
    if distributed.count() == 1 or not state:
        return
    own = torch.cat([distributed.share(ids) for ids in batches])
    for values in state.values():
        others = torch.ones(len(values), dtype=torch.bool, device=values.device)
        others[own.to(values.device)] = False
        values[others] = 0
        distributed.sum_of(values)  # one of the summands is not 0: nothing is rounded
