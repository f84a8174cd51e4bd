"""Running totals of a training run (passes, losses, accuracies), and the test for divergence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rbtools.errors import RbError
from rbtools.lazy import nn, torch
from rbtools.trainer import distributed

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.training.base import Loss


class Passes:
    """Counts the images that pass forward and backward through models inside the `with` block."""

    def __init__(self, model: nn.Module) -> None:
        self.totals = {"images": 0, "forward": 0, "backward": 0}
        self._counting = False
        self._hooks: list[Any] = []
        self.watch(model)

    def watch(self, model: nn.Module) -> None:
        self._hooks.append(model.register_forward_hook(self._count))

    def forget(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def an_image(self) -> dict[str, float]:
        """The mean number of passes per image."""
        images = self.totals["images"]
        return {name: round(self.totals[name] / images, 4) for name in ("forward", "backward")}

    def _count(self, module: nn.Module, inputs: tuple[object, ...], output: Tensor) -> None:
        if not self._counting:
            return
        self.totals["forward"] += len(output)
        if output.requires_grad:
            output.register_hook(self._count_back)

    def _count_back(self, gradient: Tensor) -> None:
        self.totals["backward"] += len(gradient)

    def __enter__(self) -> None:
        self._counting = True

    def __exit__(self, *_: object) -> None:
        self._counting = False


_NAMES = ("loss", "acc", "robust_acc")


class Totals:
    """Running means over an epoch: the loss and the accuracies that the method reports.

    The sums stay on the device, in float64, so only `means` waits for a GPU.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.sums = torch.zeros(len(_NAMES), dtype=torch.float64, device=device)
        self.counts = [0] * len(_NAMES)

    def add(self, loss: Loss, labels: Tensor) -> Tensor:
        """Add a batch or a piece of a batch. Returns its loss as float64, on the device."""
        value: Tensor = loss.value.detach().double()
        right = [
            None if logits is None else logits.argmax(1).eq(labels).sum()
            for logits in (loss.clean_logits, loss.adversarial_logits)
        ]
        for at, total in enumerate((value * len(labels), *right)):
            if total is not None:
                self.sums[at] += total
                self.counts[at] += len(labels)
        return value

    def gather(self) -> None:
        """Sum the totals of all processes of the training run; some processes may have had no images."""
        counts = self.sums.new_tensor(self.counts)
        self.sums, counts = distributed.sum_of(torch.stack([self.sums, counts]))
        self.counts = counts.int().tolist()

    def means(self) -> dict[str, float]:
        rows = zip(_NAMES, self.sums.tolist(), self.counts, strict=True)
        return {name: total / count for name, total, count in rows if count}


DIVERGED = 1e5
"""A loss above this means that the weights diverged; the loss of guessing is ln K."""


def check_loss(loss: float, epoch: int) -> None:
    """Raise RbError if the weights have diverged in this epoch, counted from 0."""
    if not math.isfinite(loss):
        raise diverged(f"the loss is {loss}", epoch)
    if loss > DIVERGED:
        raise diverged(f"the loss is {loss:g}, above {DIVERGED:g},", epoch)


def diverged(why: str, epoch: int) -> RbError:
    """Return the error for a training run that diverged in this epoch, counted from 0."""
    return RbError(
        f"The training diverged: {why} in epoch {epoch + 1}."
        " Lower the learning rate (--lr), or try another --seed."
    )
