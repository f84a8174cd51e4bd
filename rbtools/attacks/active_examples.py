"""The examples of an attack without the broken ones, and the steps at which a loop drops those.

A check makes the host wait for all work of a GPU. On a CPU it costs nothing, so a broken example is dropped
at once, which saves its remaining passes. On a GPU a loop works on all its examples, marks on the device
which are broken, and checks every few steps; if less than half of them are active, the others are dropped.
Both give the same points: an example has its own random numbers, and its computation does not depend on the
others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools.attacks.losses import AttackObjective
from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.losses import Loss
    from rbtools.attacks.target import Network
    from rbtools.rng.draws import Draws

    # From a model, a batch and whether more stages follow to (an image each, which of them fool the model).
    Stage = Callable[[Network, "AttackBatch", bool], tuple[Tensor, Tensor]]

STILL_CORRECT, CLEAN = -1, -2
"""Takes the place of a stage's number for an example that is misclassified without an attack."""


class CheckSchedule(NamedTuple):
    """At which steps a loop checks: every `every`-th."""

    every: int

    @property
    def each_step(self) -> bool:
        """Whether a broken example is dropped at once."""
        return self.every == 1

    def due(self, step: int) -> bool:
        """Whether to check after this step, counted from 0."""
        return self.each_step or (step >= 0 and (step + 1) % self.every == 0)


EACH_STEP = CheckSchedule(1)
SELDOM = CheckSchedule(8)


def check_schedule(device: torch.device) -> CheckSchedule:
    """The schedule of loops on a device."""
    return EACH_STEP if device.type == "cpu" else SELDOM


@dataclass(frozen=True)
class AttackBatch:
    """Examples under attack.

    images: float32 (N, C, H, W) in [0, 1]; labels: int64 (N,); draws: their random numbers; logits: of the
    unchanged images (N, K), if there was a clean pass.
    """

    images: Tensor
    labels: Tensor
    draws: Draws
    logits: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def schedule(self) -> CheckSchedule:
        """When a loop on these examples checks which of them are broken."""
        return check_schedule(self.images.device)

    def take(self, index: Tensor) -> AttackBatch:
        """Some of the examples, by positions or by a mask."""
        logits = None if self.logits is None else self.logits[index]
        images, labels, draws = self.images[index], self.labels[index], self.draws.take(index)
        return AttackBatch(images, labels, draws, logits)

    def goal(self, loss: Loss, targets: Tensor | None = None) -> AttackObjective:
        """The loss for these examples."""
        return AttackObjective(loss, self.labels, self.labels if targets is None else targets)


class ExampleRows:
    """The base of dataclasses whose tensors and objectives have one row an example."""

    def take(self, kept: Tensor) -> Any:
        """Keep some examples, by a mask or by positions, in place; fields of other types stay."""
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, AttackObjective):
                setattr(self, field.name, value.take(kept))
            elif isinstance(value, torch.Tensor):
                setattr(self, field.name, value[kept])
        return self


def size_for(active: int, size: int) -> int | None:
    """The number of examples to go on with when `active` of `size` are active; None to go on with all.

    It is `size` halved, rounded up, as long as it holds them, so that a loop has few shapes.
    """
    if 2 * active >= size:
        return None
    if not active:
        return 0
    while size > 1 and (size + 1) // 2 >= active:
        size = (size + 1) // 2
    return size


class ActiveExamples:
    """The examples of a loop: the image of each broken one is the first point that fooled the model.

    result: (N, C, H, W), at first the images; broken: bool (N,). row: the numbers of the examples that the
    loop works on; on a GPU broken ones may be among them.
    """

    def __init__(self, images: Tensor, schedule: CheckSchedule) -> None:
        self.schedule = schedule
        self.result = images.clone()
        self.broken = torch.zeros(len(images), dtype=torch.bool, device=images.device)
        self.row = torch.arange(len(images), device=images.device)
        self._done, self._first = self.broken.clone(), images  # which rows are broken, between checks

    def __len__(self) -> int:
        return len(self.row)

    def update(self, step: int, fooled: Tensor, points: Tensor, *rows: Any) -> tuple[Any, ...]:
        """Mark the examples that fool the model at these points (M, C, H, W), and drop broken ones.

        step: counted from 0; -1 drops none on a GPU. Returns `rows` of the examples to go on with: each a
        tensor of M rows or anything with `take`.
        """
        kept = self._mark(fooled, points) if self.schedule.each_step else self._compact(step, fooled, points)
        if kept is None:
            return rows
        return tuple(row[kept] if isinstance(row, torch.Tensor) else row.take(kept) for row in rows)

    def _mark(self, fooled: Tensor, points: Tensor) -> Tensor | None:
        """The rows to go on with, without the broken ones (a mask (M,)); None for all."""
        if not fooled.any():
            return None
        rows = self.row[fooled]
        self.result[rows], self.broken[rows] = points[fooled], True
        on = ~fooled
        self.row = self.row[on]
        return on

    def _compact(self, step: int, fooled: Tensor, points: Tensor) -> Tensor | None:
        """As `update`, but it reads from the device only after a step that is due: int64 (M,)."""
        fresh = fooled & ~self._done
        self._first = torch.where(wide(fresh, points), points, self._first)
        self._done = self._done | fooled
        if not self.schedule.due(step):
            return None
        done = self._done.cpu()
        active = (~done).nonzero()[:, 0]
        size = size_for(len(active), len(done))
        if size is None:
            return None
        self._write()
        kept = uploaded(torch.cat([active, done.nonzero()[: size - len(active), 0]]), self.row.device)
        self.row, self._done, self._first = self.row[kept], self._done[kept], self._first[kept]
        return kept

    def finish(self, points: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(result, broken); `points` (M, C, H, W) are the results of the rows that are not broken."""
        if not self.schedule.each_step:
            self._write(points)
        elif points is not None:
            self.result[self.row] = points
        return self.result, self.broken

    def _write(self, points: Tensor | None = None) -> None:
        others = self.result[self.row] if points is None else points
        self.result[self.row] = torch.where(wide(self._done, others), self._first, others)
        self.broken[self.row] = self._done


def uploaded(index: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device; a GPU gets it from pinned memory, so that the host does not
    wait."""
    return index.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else index.to(device)


def wide(mask: Tensor, like: Tensor) -> Tensor:
    """A mask (N,) shaped to broadcast over (N, C, H, W)."""
    return mask.view(-1, *[1] * (like.ndim - 1))
