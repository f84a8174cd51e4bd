"""Runs of a targeted attack towards several classes, as rows of one batch.

When few examples are left, a batch of them costs nearly as much as a full batch. The runs towards the second
and later classes are independent of each other, so several of them can share a batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import AttackBatch, Stage
    from rbtools.attacks.oracle import Oracle


@dataclass(frozen=True)
class Towards:
    """The runs of `attack` with these numbers, each of which stands for a target and a start.

    The attack has a method `towards(numbers, model, batch, more)`, whose batch contains the examples once for
    each number, and a method `rank(number)`, the position of the target in the order of the clean logits. The
    result for an example comes from the first run that breaks it, as if the runs were made one after another.
    """

    attack: Any
    numbers: tuple[int, ...]

    def __call__(self, model: Oracle, batch: AttackBatch, more: bool) -> tuple[Tensor, Tensor]:
        if len(self.numbers) == 1:
            return self._made(model, batch, more)
        one = torch.arange(len(batch), device=batch.labels.device)
        rows = one.repeat(len(self.numbers))
        several = dataclasses.replace(batch.take(rows), examples=len(one))
        ends, broken = self._made(model.take(rows), several, more)
        broken = broken.view(-1, len(one))
        first = broken.int().argmax(0)
        return ends.view(*broken.shape, *ends.shape[1:])[first, one], broken.any(0)

    def _made(self, model: Oracle, batch: AttackBatch, more: bool) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = self.attack.towards(self.numbers, model, batch, more)
        return found

    def joined(self, others: Sequence[Stage]) -> tuple[Stage, int]:
        """This run, joined with the next stages that share its batch, and the number of these stages. A run
        towards the first class is not joined, because it breaks most examples that are not robust."""
        numbers, rank = [*self.numbers], self.attack.rank
        for other in others if rank(numbers[0]) else ():
            if not (isinstance(other, Towards) and other.attack == self.attack and rank(other.numbers[0])):
                break
            numbers += other.numbers
        return Towards(self.attack, (*numbers,)), len(numbers) - len(self.numbers)
