"""The steps of l1-APGD (Croce and Hein 2021, arXiv:2103.01208): Auto-PGD in the L1 ball and the box."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rbtools.attacks import steps
from rbtools.attacks.apgd_ascent import Ascent
from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


RADII = (3, 2, 1)  # the radii of the balls in turn, as multiples of eps
LARGER_SHARE = 3  # tenths of the steps in each of the larger balls
SPARSER = 0.95  # the share of the changed pixels below which the change has become sparser
SPARSITY_RATIO = 1.5  # changed pixels of the best point for each entry of the gradient that a step follows
SHRINK, LEAST_STEP = 1.5, 0.1  # of the step size: its divisor, and the least share of eps


def radii(eps: float, count: int) -> list[tuple[float, int]]:
    """The radii and numbers of steps of the balls in turn: 3 eps, 2 eps and eps with .3, .3 and .4 of all.

    With fewer than four steps all are in the last ball.
    """
    larger = count * LARGER_SHARE // 10
    numbers = (larger, larger, count - 2 * larger)
    return [(times * eps, number) for times, number in zip(RADII, numbers, strict=True) if number]


def check_every(count: int) -> int:
    """After how many of `count` steps the sparsity and the step size are adapted."""
    return max(count // 25, 1)


def sparse_direction(gradient: Tensor, entries: Tensor) -> Tensor:
    """The signs of the largest `entries` (N,) of the gradient, of L1 norm 1; zeros stay zeros.

    Entries as large as the smallest of them count too. Shape: gradient (N, C, H, W); the result as gradient.
    """
    sizes = gradient.abs().flatten(1)
    last = entries.long().clamp(1, sizes.shape[1]) - 1
    least = sizes.sort(dim=1, descending=True).values.gather(1, last[:, None])
    signs = torch.where(sizes >= least, gradient.flatten(1).sign(), 0.0)
    return (signs / signs.abs().sum(1, keepdim=True).clamp_min(1)).view_as(gradient)


@dataclass
class SparseAscent(Ascent):
    """Steps along the largest entries of the gradient, as many as the best change so far suggests.

    Where that change has become sparser, the step is eps again and goes on from the best point; elsewhere it
    shrinks. eps: in pixel units of [0, 1]; every: after how many steps that is decided.
    """

    eps: float
    every: int
    step: Tensor = field(init=False)
    changed: Tensor = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.step = torch.full((len(self.point), 1, 1, 1), self.eps, device=self.point.device)
        self.changed = self._changed_entries()

    def _changed_entries(self) -> Tensor:
        """How many entries of the best point differ from the image (N,)."""
        return (self.best_point != self.images).flatten(1).sum(1)

    def move(self, number: int) -> Tensor:
        entries = torch.ceil(self.changed / SPARSITY_RATIO)
        point = self.point + self.step * sparse_direction(self.gradient, entries)
        return steps.project(point, self.images, self.eps, "l1")

    def check(self, number: int) -> None:
        if number % self.every:
            return
        changed = self._changed_entries()
        sparser = (changed < SPARSER * self.changed).view(-1, 1, 1, 1)
        shrunk = (self.step / SHRINK).clamp_min(LEAST_STEP * self.eps)
        self.step = torch.where(sparser, self.eps, shrunk)
        self.changed = changed
        self.return_to_best(sparser)
