"""The examples that an attack has not broken yet, and the steps after which a loop drops broken examples.

On a CPU, a loop drops a broken example at once. On a GPU, checking which examples are broken makes the host
wait for all work of the GPU. The loop therefore marks broken examples on the device and checks the marks
every few steps. If fewer than half of the examples are active (not broken), the loop drops the others. Both
loops find the same points, because each example has its own random numbers and its computation does not
depend on the other examples. On a GPU, the search uses a faster copy of the model. An example that the copy
misclassifies is broken only if the model itself also misclassifies it at the next check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools.attacks.losses import AttackObjective
from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.losses import Loss
    from rbtools.attacks.oracle import Oracle
    from rbtools.rng.draws import Draws

    # Maps a model, a batch and whether more stages follow to (one image per example, which fool the model).
    Stage = Callable[[Oracle, "AttackBatch", bool], tuple[Tensor, Tensor]]

# Rows of a batch that runs share, as many as the images of a tile on a CPU (evaluation/base.py), whose memory
# they need: _FULL images of _PIXELS pixels, or at most _MOST times as many smaller ones.
_FULL, _PIXELS, _MOST = 128, 32 * 32, 4

STILL_CORRECT, CLEAN = -1, -2
"""Values instead of the number of a stage: the example is not broken, or is misclassified when unchanged."""


class CheckSchedule(NamedTuple):
    """The schedule of a loop, which checks after every `every`-th step which examples are broken."""

    every: int

    @property
    def each_step(self) -> bool:
        """True if broken examples are dropped at once."""
        return self.every == 1

    def due(self, step: int) -> bool:
        """True if the loop checks after this step. Steps are counted from 0."""
        return self.each_step or (step >= 0 and (step + 1) % self.every == 0)

    def seldom(self, share: int) -> CheckSchedule:
        """A schedule with one of every `share` checks, unless every step is checked."""
        return self if self.each_step else CheckSchedule(share * self.every)

    def rounds(self, most: int, unchecked: int) -> range:
        """The rounds of a loop inside a step: `most` if every step is checked, and otherwise `unchecked`."""
        return range(most if self.each_step else unchecked)

    def unconfirmed(self, model: Oracle) -> Oracle | None:
        """The fast copy alone, if the model itself is only used in checks. Otherwise None."""
        return None if self.each_step else model.undecided()


EACH_STEP = CheckSchedule(1)
SELDOM = CheckSchedule(8)


def check_schedule(device: torch.device) -> CheckSchedule:
    return EACH_STEP if device.type == "cpu" else SELDOM


def may_be_true(mask: Tensor) -> bool:
    """False if the mask has no true entry. Always true on a GPU, where the host would wait for the mask."""
    return not check_schedule(mask.device).each_step or bool(mask.any())


def rows_of(mask: Tensor) -> Tensor | slice:
    """An index of the rows where a mask (N,) is true, or of all rows on a GPU, where the host would wait."""
    return mask if check_schedule(mask.device).each_step and not mask.all() else slice(None)


def misclassified(among: Tensor, model: Oracle, points: Tensor, labels: Tensor, logits: Tensor) -> Tensor:
    """A mask (N,) of the rows in the mask `among` whose points (N, C, H, W) the model misclassifies. `logits`
    belong to the points. On a GPU, the model also classifies the other rows."""
    if not check_schedule(among.device).each_step:
        return among & ~model.still_correct(points, labels, logits)
    wrong = among.clone()
    if among.any():
        wrong[among] = ~model.take(among).still_correct(points[among], labels[among], logits[among])
    return wrong


@dataclass(frozen=True)
class AttackBatch:
    """A batch of examples under attack.

    `images` is float32 (N, C, H, W) in [0, 1], `labels` is int64 (N,), and `draws` holds the random numbers.
    `logits` (N, K) are the logits of the unchanged images, or None without a clean pass. `decides` is the
    model itself, if the search uses a fast copy whose decisions are not checked at once. `unchanged` (N, ...)
    are the points of the threat that change nothing. If it is None, the points are images. If several runs
    share the batch, `examples` is the number of examples, and row i belongs to example i modulo this number.
    """

    images: Tensor
    labels: Tensor
    draws: Draws
    logits: Tensor | None = None
    decides: Oracle | None = None
    unchanged: Tensor | None = None
    examples: int | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def points(self) -> Tensor:
        """The points before the first step."""
        return self.images if self.unchanged is None else self.unchanged

    @property
    def schedule(self) -> CheckSchedule:
        return check_schedule(self.images.device)

    def take(self, index: Tensor) -> AttackBatch:
        logits = None if self.logits is None else self.logits[index]
        images, labels, draws = self.images[index], self.labels[index], self.draws.take(index)
        unchanged = None if self.unchanged is None else self.unchanged[index]
        return AttackBatch(images, labels, draws, logits, self.decides, unchanged)

    @property
    def room(self) -> int:
        """The number of runs that may share this batch: up to 128 images of 32x32, or 512 small ones. More
        would not be faster.

        The number does not depend on the memory batch, because a resumed attack needs the same number. On a
        GPU, each run has its own batch.
        """
        smaller = _PIXELS // (self.images.shape[-1] * self.images.shape[-2])
        full = _FULL * min(max(smaller, 1), _MOST)
        return max(full // len(self), 1) if self.schedule.each_step else 1

    def goal(self, loss: Loss, targets: Tensor | None = None) -> AttackObjective:
        return AttackObjective(loss, self.labels, self.labels if targets is None else targets)


class ExampleRows:
    """Base class of dataclasses whose tensors, objectives and random numbers have one row per example."""

    def take(self, kept: Tensor) -> Any:
        """Select some examples in place, by a mask or by positions."""
        for name, value in list(vars(self).items()):
            if isinstance(value, torch.Tensor):
                setattr(self, name, value[kept])
            elif hasattr(value, "take"):
                setattr(self, name, value.take(kept))
        return self

    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, torch.Tensor)}


def size_for(active: int, size: int) -> int | None:
    """The number of examples that remain in a loop, or None if at least half of the `size` examples are
    active. The number is `size`, halved (rounded up) as often as possible so that all active examples fit. A
    loop thus uses few different tensor shapes."""
    if 2 * active >= size:
        return None
    if not active:
        return 0
    while size > 1 and (size + 1) // 2 >= active:
        size = (size + 1) // 2
    return size


class ActiveExamples:
    """The examples in a loop. The result for a broken example is the first point that fooled the model.

    `schedule` replaces the schedule of the batch. `result` (N, ...) initially contains the unchanged points.
    `broken` is bool (N,). `row` contains the indices of the examples in the loop, which on a GPU include
    broken examples.
    """

    def __init__(self, batch: AttackBatch, schedule: CheckSchedule | None = None) -> None:
        self.batch, self.schedule = batch, schedule or batch.schedule
        self.result = batch.points.clone()
        self.broken = torch.zeros(len(batch), dtype=torch.bool, device=self.result.device)
        self.row = torch.arange(len(batch), device=self.result.device)
        if not self.schedule.each_step:  # used between checks
            self._first = self.result.clone()  # the points that fooled the model
            self._done = self.broken.clone()  # which rows are broken
            self._confirmed = self.broken.clone()  # which rows the model itself misclassified
            self._refuted = self.broken.clone()  # the copy was wrong before, so the latest point counts

    def __len__(self) -> int:
        return len(self.row)

    @property
    def everyone(self) -> bool:
        """True if broken rows take part in the steps until the next check."""
        return not self.schedule.each_step

    def update(self, step: int, fooled: Tensor, points: Tensor, *rows: Any) -> tuple[Any, ...]:
        """Mark the examples that fool the model at these points (M, C, H, W), and drop broken examples.

        `step` is counted from 0. With `step` -1, no example is dropped on a GPU. Each of `rows` is a tensor
        of M rows or an object with `take`. Returns `rows` without the dropped examples.
        """
        if self.schedule.each_step:
            return _kept(rows, self._drop(fooled, points))
        fresh = fooled & (~self._done | self._refuted)
        self._first.copy_(torch.where(wide(fresh, points), points, self._first))
        self._done |= fooled
        return self.check(step, *rows)

    def check(self, step: int, *rows: Any) -> tuple[Any, ...]:
        """Drop broken examples as `update` does, on a GPU, if a check is due after this step."""
        if self.schedule.each_step or not self.schedule.due(step):
            return rows
        done = self._decided()
        active = (~done).nonzero()[:, 0]
        size = size_for(len(active), len(done))
        if size is None:
            return rows
        self._write()
        kept = uploaded(torch.cat([active, done.nonzero()[: size - len(active), 0]]), self.row.device)
        for name in ("row", "_first", "_done", "_confirmed", "_refuted"):
            setattr(self, name, getattr(self, name)[kept])
        return _kept(rows, kept)

    def marks(self) -> tuple[Tensor, Tensor]:
        """A copy of what `update` writes on a GPU: the mask of broken rows, and their points."""
        return self._done.clone(), self._first.clone()

    def set_marks(self, marks: tuple[Tensor, Tensor]) -> None:
        self._done.copy_(marks[0])
        self._first.copy_(marks[1])

    def finish(self, points: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns `result` and `broken`. `points` (M, C, H, W) are the results for unbroken rows."""
        if not self.schedule.each_step:
            if self.batch.decides is not None:
                self._decided()
            self._write(points)
        elif points is not None:
            self.result[self.row] = points
        return self.result, self.broken

    def _drop(self, fooled: Tensor, points: Tensor) -> Tensor | None:
        """Drop the broken rows. Returns a mask (M,) of the remaining rows, or None if no row is broken."""
        if not fooled.any():
            return None
        rows = self.row[fooled]
        self.result[rows], self.broken[rows] = points[fooled], True
        on = ~fooled
        if (
            self.batch.examples is not None
        ):  # the runs after the first one that breaks an example do not count
            runs = self.broken.view(-1, self.batch.examples)
            first = torch.where(runs.any(0), runs.int().argmax(0), len(runs))
            on &= self.row // self.batch.examples < first[self.row % self.batch.examples]
        self.row = self.row[on]
        return on

    def _decided(self) -> Tensor:
        """A mask of the broken rows, on the host. The model checks rows that only the copy misclassified."""
        if self.batch.decides is None:
            return self._done.cpu()
        done, confirmed = torch.stack((self._done, self._confirmed)).cpu()
        asked = (done & ~confirmed).nonzero()[:, 0]
        if len(asked):
            rows = uploaded(asked, self.row.device)
            whose = self.row[rows]
            model = self.batch.decides.take(whose)
            wrong = ~model.verdict(self._first[rows], self.batch.labels[whose])
            self._done[rows] = self._confirmed[rows] = wrong
            self._refuted[rows] = ~wrong
            done[asked] = wrong.cpu()
        result: Tensor = done
        return result

    def _write(self, points: Tensor | None = None) -> None:
        others = self.result[self.row] if points is None else points
        self.result[self.row] = torch.where(wide(self._done, others), self._first, others)
        self.broken[self.row] = self._done


def _kept(rows: tuple[Any, ...], kept: Tensor | None) -> tuple[Any, ...]:
    if kept is None:
        return rows
    return tuple(row[kept] if isinstance(row, torch.Tensor) else row.take(kept) for row in rows)


def uploaded(index: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the host to a device. With pinned memory, the host does not wait for a GPU."""
    return index.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else index.to(device)


def wide(mask: Tensor, like: Tensor) -> Tensor:
    """Reshape a mask (N,) so that it broadcasts over (N, C, H, W)."""
    return mask.view(-1, *[1] * (like.ndim - 1))
