"""The state of a training run between two epochs, from which it resumes."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rbtools.datasets import streaming
from rbtools.errors import RbError
from rbtools.lazy import torch
from rbtools.models import unpickle
from rbtools.trainer import distributed

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim.swa_utils import AveragedModel

    from rbtools.trainer.optim import Schedule
    from rbtools.training.base import Method


@dataclass(eq=False)
class TrainState:
    """The state after an epoch. The order and the random numbers of the next epoch are determined by the seed
    and the number of the epoch.

    `carried` maps names to the method's tensors, which have an entry for each example. `epoch` is the number
    of finished epochs. `history` and `tracked` map each quantity to a list with an entry per epoch; in
    `tracked`, epochs without a measurement are None. `best` contains "epoch", "rank" and "state" of the best
    validation. `drawn` contains the weights before the random step (--output random). `passes` contains the
    numbers of trained images and of their passes. `places` lists the processors on which epochs
    ran, because rounding depends on them. `stopped` is true if --stop-on has ended the training.

    If a stored state lacks a field, training starts from the beginning. To keep older states usable, give a
    new field a default in `load`.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    averaged: AveragedModel | None = None
    carried: dict[str, Tensor] = field(default_factory=dict)
    epoch: int = 0
    history: dict[str, list[float]] = field(default_factory=dict)
    tracked: dict[str, list[float | None]] = field(default_factory=dict)
    best: dict[str, Any] | None = None
    drawn: dict[str, Tensor] | None = None
    passes: dict[str, int] = field(default_factory=lambda: {"images": 0, "forward": 0, "backward": 0})
    places: list[str] = field(default_factory=list)
    stopped: bool = False

    @property
    def kept(self) -> nn.Module:
        """The network that is validated and stored; with --ema, this is the averaged network."""
        return self.model if self.averaged is None else self.averaged.module

    @property
    def _parts(self) -> dict[str, Any]:
        averaged = {} if self.averaged is None else {"averaged": self.averaged.module}
        return {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule, **averaged}

    def to_bytes(self) -> bytes:
        on_cpu = next(self.model.parameters()).device.type == "cpu"
        fields = vars(self) | {name: part.state_dict() for name, part in self._parts.items()}
        buffer = io.BytesIO()
        torch.save(fields | {"threads": torch.get_num_threads() if on_cpu else None}, buffer)
        return buffer.getvalue()

    def load(self, data: bytes) -> None:
        """Load the state from stored bytes, into the existing tensors of the model, `carried` and `passes`.
        May raise any exception if the bytes do not match; a part may then already be loaded."""
        stored = unpickle.torch_file(io.BytesIO(data))
        for name, part in self._parts.items():
            part.load_state_dict(stored[name])
        for name, values in self.carried.items():
            values.copy_(stored["carried"][name])
        self.passes.update(stored["passes"])
        for name in vars(self).keys() - {*self._parts, "averaged", "carried", "passes"}:
            setattr(self, name, stored[name])


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Copies of a network's weights and buffers, by name."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def threads(data: bytes | None) -> int | None:
    """Return the number of CPU threads per process of a stored training run, or None if it is unknown."""
    try:
        number = None if data is None else unpickle.torch_file(io.BytesIO(data)).get("threads")
    except Exception:  # torch raises many errors for damaged files; loading the state reports them
        return None
    return number if type(number) is int and number > 0 else None


def allocate_carried(
    method: Method, examples: int, shape: Sequence[int], device: torch.device
) -> dict[str, Tensor]:
    """Zeros, float16 (examples, C, H, W), for each name in `method.carried`, on the device if they need at
    most half of its free memory, otherwise in the machine's memory. Raises RbError if that is too small."""
    if not method.carried:
        return {}
    size = len(method.carried) * examples * math.prod(shape) * 2  # bytes of float16 values
    if device.type == "cuda" and not streaming.fits(size, device):
        device = torch.device("cpu")
    limit = streaming.memory_limit()
    if device.type == "cpu" and size > limit:
        raise RbError(
            f"{method.name} stores {size / 2**30:.1f} GiB for {examples} images between epochs, which is more"
            f" than half of the free memory ({limit / 2**30:.1f} GiB). Use n-fgsm, which stores nothing."
        )
    return {
        name: torch.zeros(examples, *shape, dtype=torch.float16, device=device) for name in method.carried
    }


def share_carried(state: Mapping[str, Tensor], batches: Iterable[Tensor]) -> None:
    """After an epoch with these batches, copy each example's tensors to all processes."""
    if distributed.count() == 1 or not state:
        return
    share = torch.cat([distributed.share(ids) for ids in batches])
    for values in state.values():
        others = torch.ones(len(values), dtype=torch.bool, device=values.device)
        others[share.to(values.device)] = False
        values[others] = 0
        distributed.sum_of(values)  # only one summand is not 0, so the sum is exact
