"""Attacks on a randomised model by expectation over transformation (Athalye et al. 2018, arXiv:1707.07397).

Every gradient, loss and logit is a mean over several samples of the model. A sample is one evaluation of the
model with its own random numbers, called `draw` in the code. For each example, the attack keeps the points
that failed most often, and at the end selects one of these points with new samples. Random numbers depend
only on (seed, example, pass), so no result depends on the batch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from rbtools.attacks import losses
from rbtools.attacks.active_examples import wide
from rbtools.attacks.losses import AttackObjective
from rbtools.attacks.oracle import Evaluated, Oracle
from rbtools.lazy import torch
from rbtools.registry import rare_param

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.base import Attack
    from rbtools.rng.draws import Draws

DEFAULT = 20  # samples in each pass over a randomised model
CHOICE = 20  # new samples for each candidate point, to choose one
SURE = 100  # failed samples in a row, after which the failure rate is 97 % or more
BY_MARGIN = 3  # points kept for each example because of their mean margin, which is noisy


def eot_param() -> Any:
    return rare_param(
        None,
        "Number of samples of a randomised model over which each gradient or score is averaged."
        f"  [default: {DEFAULT} for a randomised model, otherwise 1]",
        check="positive",
        metavar="N",
        optional=True,
        last=True,
    )


class _Best:
    """The K points with the largest values for each example: points (K, N, C, H, W), values (K, N)."""

    def __init__(self, images: Tensor, count: int) -> None:
        self.points = images.repeat(count, 1, 1, 1, 1)
        self.values = torch.full_like(self.points[:, :, 0, 0, 0], -torch.inf)

    def note(self, rows: Tensor, points: Tensor, values: Tensor, allowed: Tensor) -> None:
        """Keep each point (M, C, H, W) with `allowed` (M,) true whose value exceeds the smallest kept value
        of its example. `rows` (M,) are the examples of the points."""
        points, values = points.to(self.points), values.to(self.values)
        least, place = self.values[:, rows].min(0)
        better = allowed & (values > least)
        self.points[place, rows] = torch.where(wide(better, points), points, self.points[place, rows])
        self.values[place, rows] = torch.where(better, values, least)


class MeanOverDraws(Oracle):
    """The mean over `method.draws_each` samples of a randomised model, for the examples of an attack.

    All samples of an image are in the same batch. An example counts as misclassified, and is dropped, only
    after SURE samples have failed in consecutive passes without a correct sample. If the attack searches for
    the nearest point or uses one sample per pass, the majority of the samples in a pass decides instead.
    """

    def __init__(self, target: Oracle, method: Attack, images: Tensor, labels: Tensor, draws: Draws) -> None:
        self.target, self.method, self.images = target, method, images
        self.true_labels, self.draws = labels, draws
        self.each, chunk = method.draws_each, target.chunk_size
        chunk = None if chunk is None else max(chunk // self.each, 1)
        super().__init__(target.logits, chunk, passes=target.passes)
        self.partial = target.partial
        self.rows: Tensor = torch.arange(len(images), device=images.device)
        # shared with the targets that `take` returns
        self.made, self.failed = torch.zeros_like(labels), torch.zeros_like(labels)
        self.last, self.by_margin, self.by_rate = images.clone(), _Best(images, BY_MARGIN), _Best(images, 1)
        self._last: tuple[Any, Any] = (None, None)

    def memory(self) -> dict[str, Tensor]:
        return {**super().memory(), **self._changed()}

    def recall(self, memory: dict[str, Tensor]) -> None:
        super().recall(memory)
        for name, tensor in self._changed().items():
            tensor.copy_(memory[name])

    def _changed(self) -> dict[str, Tensor]:
        """The tensors that are changed in place by passes."""
        tensors = {"made": self.made, "failed": self.failed, "last": self.last}
        for name, best in (("by_margin", self.by_margin), ("by_rate", self.by_rate)):
            tensors |= {f"{name}.{field}": tensor for field, tensor in vars(best).items()}
        return tensors

    def take(self, rows: Tensor | slice) -> Oracle:
        some = copy(self)
        some.rows, some._last = self.rows[rows], (None, None)
        return some

    @property
    def randomised(self) -> bool:
        return True

    def repeat_draws(self) -> None:
        self.made[self.rows] -= 1

    def logits(self, points: Tensor) -> Tensor:
        images = self.seen(points)
        drawn, right = self.in_chunks(len(images), lambda rows: self._drawn(images[rows], self.rows[rows]))
        logits = drawn.mean(1)
        self._last = (logits, right)
        return logits

    def loss_and_gradient(
        self, points: Tensor, objective: AttackObjective, *, everyone: bool = False
    ) -> Evaluated:
        points, parts = self.seen(points.detach()), []
        for rows in self.chunks(len(points)):
            goal = objective.take(rows)
            copies = AttackObjective(goal.loss, self._copies(goal.labels), self._copies(goal.targets))
            with torch.enable_grad():
                inputs = points[rows].clone().requires_grad_(True)
                drawn, right = self._drawn(inputs, self.rows[rows])
                logits = drawn.flatten(0, 1)
            again = Oracle(functools.partial(self._repeated, self.rows[rows]))
            loss, gradient = again.differentiate(inputs, logits, copies)
            correct = self._still(right, self.rows[rows])
            kept = slice(None) if everyone else correct
            loss = loss.view(-1, self.each).mean(1)
            parts.append(Evaluated(correct, loss[kept], gradient[kept] / self.each))
        return parts[0] if len(parts) == 1 else Evaluated(*map(torch.cat, zip(*parts, strict=True)))

    def still_correct(self, points: Tensor, labels: Tensor, logits: Tensor | None = None) -> Tensor:
        if logits is None or self._last[0] is not logits:
            with torch.no_grad():
                self.logits(points)
        return self._still(self._last[1], self.rows)

    def _still(self, right: Tensor, rows: Tensor) -> Tensor:
        """The examples that count as correct (M,) after a pass with `right` (M,) correct samples."""
        if self.method.minimal or self.each == 1:
            return 2 * right > self.each
        return self.failed[rows] < SURE

    def chosen(self, points: Tensor) -> Tensor:
        """For each example, the best point among `points` (N, C, H, W) and the points that were kept.

        All candidates get the same new samples. The candidate with the largest mean margin is selected,
        unless another candidate fails more often by more than one standard deviation of the difference.
        """
        candidates = [points, self.last, *self.by_margin.points, *self.by_rate.points]
        judged = self._new_draws(candidates)
        best: Tensor = candidates[0]
        right, margin = judged[0]
        for candidate, (also, larger) in zip(candidates[1:], judged[1:], strict=True):
            better = larger > margin
            best = torch.where(wide(better, best), candidate, best)
            right, margin = torch.where(better[:, None], also, right), torch.where(better, larger, margin)
        for candidate, (also, _) in zip(candidates, judged, strict=True):
            only, others = (right & ~also).sum(1), (also & ~right).sum(1)
            better = (only > others) & ((only - others) ** 2 > only + others)
            best = torch.where(wide(better, best), candidate, best)
            right = torch.where(better[:, None], also, right)
        return best

    def _new_draws(self, candidates: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """For each candidate, the correct samples (N, samples) among at least CHOICE, and the summed margin
        (N,). The samples are independent of the search. Equal candidates are evaluated once."""
        judged: list[tuple[Tensor, Tensor]] = []
        for number, candidate in enumerate(candidates):
            left = torch.ones_like(self.true_labels, dtype=torch.bool)
            for earlier in candidates[:number]:
                left &= (candidate != earlier).flatten(1).any(1)
            rows = left.nonzero()[:, 0]
            if not number:
                judged.append(self._judged(candidate, rows))
            elif len(rows):
                right, margin = judged[0][0].clone(), torch.full_like(judged[0][1], -torch.inf)
                right[rows], margin[rows] = self._judged(candidate[rows], rows)
                judged.append((right, margin))
            else:  # some models do not accept an empty batch
                judged.append((judged[0][0], torch.full_like(judged[0][1], -torch.inf)))
        return judged

    def _judged(self, points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The same as `_new_draws`, for a single candidate (M, C, H, W) of some examples."""
        right, margin = [], torch.zeros(len(rows), device=rows.device)
        with torch.no_grad():
            for first in range(0, CHOICE, self.each):
                parts = [
                    self._passed(points[some], rows[some], "choice", rows[some] * 0 + first)
                    for some in self.chunks(len(rows))
                ]
                drawn, labels = torch.cat(parts), self.true_labels[rows]
                right.append(drawn.argmax(2).eq(labels[:, None]))
                margin += self._margins(drawn, labels).sum(1)
        return torch.cat(right, 1), margin

    def _copies(self, rows: Tensor) -> Tensor:
        return rows.repeat_interleave(self.each, 0)

    def _margins(self, drawn: Tensor, labels: Tensor) -> Tensor:
        labels = self._copies(labels)
        return losses.margin(drawn.flatten(0, 1), labels, labels).view(-1, self.each)

    def _drawn(self, points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Returns logits (M, samples, K) and numbers of correct samples (M,), and updates the kept points."""
        drawn = self._passed(points, rows, "search", self.made[rows] * self.each)
        self.made[rows] += 1
        labels, points = self.true_labels[rows], points.detach()
        right = drawn.detach().argmax(2).eq(labels[:, None]).sum(1)
        self.failed[rows] = torch.where(right == 0, self.failed[rows] + self.each, 0)
        margin = self._margins(drawn.detach(), labels).mean(1)
        self.target.take(rows)._note(drawn.mean(1), labels)
        inside = self.method.threat.contains(points, self.images[rows])
        self.last[rows] = torch.where(wide(inside, points), points.to(self.last), self.last[rows])
        self.by_rate.note(rows, points, -right.to(margin), inside)
        self.by_margin.note(rows, points, margin, inside)
        return drawn, right

    def _repeated(self, rows: Tensor, points: Tensor) -> Tensor:
        """The logits (M * samples, K) of other points with the random numbers of the last pass."""
        return self._passed(points, rows, "search", (self.made[rows] - 1) * self.each).flatten(0, 1)

    def _passed(self, points: Tensor, rows: Tensor, stream: str, first: Tensor) -> Tensor:
        """Returns logits (M, samples, K). `first` (M,) is the index of each example's first sample."""
        from rbtools.rng.foreign import ExampleNumbers

        parts = []
        together = min(self.each, self.target.chunk_size or self.each)
        for start in range(0, self.each, together):
            numbers = torch.arange(start, min(start + together, self.each), device=rows.device)
            passes = (first[:, None] + numbers).flatten()
            examples = self.draws.examples[rows].repeat_interleave(len(numbers))
            with ExampleNumbers(self.draws.seed, f"model.{stream}.{self.draws.stream}", examples, passes):
                logits = self.target.logits(points.repeat_interleave(len(numbers), 0))
            parts.append(logits.view(len(points), len(numbers), logits.shape[1]))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
