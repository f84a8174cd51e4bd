"""The active examples of an attack's loop, those not broken yet, and at which steps the loop checks for them.

A check makes the host wait for all work of a GPU. On a CPU it costs nothing, so a broken example leaves at
once and saves the rest of its passes. On a GPU a loop works on all its examples, marks on the device which
are broken, and checks every few steps; if less than half of them are active, the others leave. The randomness
of an example is its own and its computation does not depend on others, so both give the same points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


class CheckSchedule(NamedTuple):
    """At which steps a loop checks: every `every`-th."""

    every: int

    @property
    def each_step(self) -> bool:
        """Whether a broken example leaves at once."""
        return self.every == 1

    def due(self, step: int) -> bool:
        """Whether to check after this step, counted from 0."""
        return self.each_step or (step >= 0 and (step + 1) % self.every == 0)


EACH_STEP = CheckSchedule(1)
SELDOM = CheckSchedule(8)


def check_schedule(device: torch.device) -> CheckSchedule:
    """The schedule of loops on a device."""
    return EACH_STEP if device.type == "cpu" else SELDOM


def size_for(active: int, size: int) -> int | None:
    """The number of examples to go on with when `active` of `size` are active; None to go on with all.

    It is `size` halved, rounded up, as often as they fit, so that a loop has few shapes.
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
        self._done, self._first = self.broken.clone(), images  # of the rows, between checks

    def __len__(self) -> int:
        return len(self.row)

    def mark_broken(self, fooled: Tensor, points: Tensor) -> Tensor | None:
        """Mark the rows that fool the model at these points (M, C, H, W).

        Returns the rows to go on with, a mask (M,), or None to go on with all.
        """
        if not self.schedule.each_step:
            fresh = fooled & ~self._done
            self._first = torch.where(wide(fresh, points), points, self._first)
            self._done = self._done | fooled
            return None
        if not fooled.any():
            return None
        rows = self.row[fooled]
        self.result[rows], self.broken[rows] = points[fooled], True
        on = ~fooled
        self.row = self.row[on]
        return on

    def drop(self, fooled: Tensor, points: Tensor, *rows: Any) -> tuple[Any, ...]:
        """`mark_broken`, and the points and rows (M, ...) to go on with: tensors, or objectives."""
        return _kept(self.mark_broken(fooled, points), points, *rows)

    def shrink(self, step: int, *rows: Any) -> tuple[Any, ...]:
        """`compact`, and the rows to go on with."""
        return _kept(self.compact(step), *rows)

    def compact(self, step: int) -> Tensor | None:
        """After a step, counted from 0: the rows to go on with, int64 (M,), or None to go on with all."""
        if self.schedule.each_step or not self.schedule.due(step):
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
        if self.schedule.each_step:
            if points is not None:
                self.result[self.row] = points
        else:
            self._write(points)
        return self.result, self.broken

    def _write(self, points: Tensor | None = None) -> None:
        others = self.result[self.row] if points is None else points
        self.result[self.row] = torch.where(wide(self._done, others), self._first, others)
        self.broken[self.row] = self._done


def _kept(on: Tensor | None, *rows: Any) -> tuple[Any, ...]:
    if on is None:
        return rows
    return tuple(row[on] if isinstance(row, torch.Tensor) else row.take(on) for row in rows)


def uploaded(index: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device; a GPU gets it from pinned memory, so that nothing waits."""
    return index.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else index.to(device)


def wide(mask: Tensor, like: Tensor) -> Tensor:
    """A mask (N,) shaped to broadcast over (N, C, H, W)."""
    return mask.view(-1, *[1] * (like.ndim - 1))
