"""Counts the classes that a network predicts for the noisy copies in randomised smoothing. Each image has its
own random numbers, so the counts depend neither on other images nor on the number of workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from rbtools.lazy import Tensor, torch
from rbtools.probabilistic import smoothing
from rbtools.rng.draws import Draws

if TYPE_CHECKING:
    from rbtools.certification.smooth import Smooth


class SmoothedExamples(NamedTuple):
    """The images to certify, float32 (N, C, H, W) in [0, 1], and their labels, int64 (N,).

    `select` holds the random numbers of the copies that select the class, and `estimate` those of the copies
    that bound its probability. `logits` maps noisy copies (M, C, H, W) of the examples in rows (M,) to
    float32 logits (M, classes).
    """

    images: Tensor
    labels: Tensor
    select: Draws
    estimate: Draws
    logits: Callable[[Tensor, Tensor], Tensor]
    classes: int


def count(method: Smooth, questions: tuple[float, ...], examples: SmoothedExamples) -> Tensor:
    """The counts as int64 (N, 5), with one row for each image. The columns are the selected class, whether it
    is the label (1 or 0), the number of copies drawn after the selection, the number of these copies that get
    the selected class, and the number of certified radii in `questions` (-1 without `adaptive`)."""
    everybody = torch.arange(len(examples.labels), device=examples.labels.device)
    votes = torch.zeros(len(everybody), examples.classes, dtype=torch.int64, device=everybody.device)
    for classes in _classes(examples, examples.select, everybody, method.sigma, 0, method.select):
        votes.scatter_add_(1, classes, torch.ones_like(classes))
    selected = votes.argmax(1)
    state = _Drawing(examples, selected, method, questions)
    state.draw()
    passed = state.passed if method.adaptive else torch.full_like(selected, -1)
    right = selected.eq(examples.labels)
    return torch.stack([selected, right.long(), state.drawn, state.hits, passed], dim=1)


class _Drawing:
    """The counts of some examples, all int64 (N,): `drawn` copies, of which `hits` have the selected class,
    and `passed` certified radii."""

    def __init__(
        self, examples: SmoothedExamples, selected: Tensor, method: Smooth, questions: tuple[float, ...]
    ) -> None:
        self.examples, self.selected, self.method, self.questions = examples, selected, method, questions
        self.drawn, self.hits = torch.zeros_like(selected), torch.zeros_like(selected)
        self.passed = torch.zeros_like(selected)
        self.open = torch.ones_like(selected, dtype=torch.bool)

    def draw(self) -> None:
        """Sample all copies. With `adaptive`, stop for examples that are decided."""
        method = self.method
        if not method.adaptive:
            self._extend(self.open.nonzero()[:, 0], 0, method.samples)
            return
        plan = smoothing.stopping_plan(method.samples, self.questions, method.sigma, method.alpha)
        crossed = torch.zeros(len(self.selected), len(plan.certify), dtype=torch.bool)
        before = 0
        for check, draws in enumerate(plan.checks.tolist()):
            rows = self.open.nonzero()[:, 0]
            if not len(rows):
                return
            self._extend(rows, before, draws)
            before = draws
            # Close the examples that this check decides.
            failures = (self.drawn - self.hits)[rows].cpu()[:, None]
            places, right = rows.cpu(), self.selected.eq(self.examples.labels)[rows].cpu()
            crossed[places] |= failures <= torch.as_tensor(plan.certify[:, check])
            passed = crossed[places].long().cumprod(1).sum(1)  # a radius needs all smaller radii
            questions = crossed.shape[1]
            given_up = (failures >= torch.as_tensor(plan.give_up[:, check])).gather(
                1, passed.clamp(max=questions - 1)[:, None]
            )[:, 0]
            done = given_up | (passed >= torch.where(right, questions, 1))
            self.passed[rows] = passed.to(rows.device)
            self.open[rows] = ~done.to(rows.device)

    def _extend(self, rows: Tensor, start: int, stop: int) -> None:
        draws = self.examples.estimate
        for classes in _classes(self.examples, draws, rows, self.method.sigma, start, stop):
            self.hits[rows] += classes.eq(self.selected[rows][:, None]).sum(1)
        self.drawn[rows] += stop - start


def _classes(
    examples: SmoothedExamples, draws: Draws, rows: Tensor, sigma: float, start: int, stop: int
) -> Iterator[Tensor]:
    """The classes (M, B) of copies `start` (a multiple of BLOCK) to `stop` of some examples, in blocks."""
    own_draws, shape, size = draws.take(rows), tuple(examples.images.shape[1:]), smoothing.BLOCK
    for first in range(start, stop, size):
        count = min(size, stop - first)
        noise = own_draws.normal((size, *shape), draw=first // size)[:, :count]
        copied = rows.repeat_interleave(count)
        noisy = examples.images[copied].add(noise.flatten(0, 1), alpha=sigma)
        yield examples.logits(noisy, copied).argmax(1).view(-1, count)


def part_size(images: int, most: int) -> int:
    """The size of equal parts of `images`, at most `most`. (Kernels round small batches differently.)"""
    return math.ceil(images / math.ceil(images / most))
