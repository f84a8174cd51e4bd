"""A randomised model under attack: expectation over transformation (Athalye et al. 2018, arXiv:1707.07397).

Every gradient, loss and logit is a mean over draws of the model. A point is not kept because one draw fails,
but for its failure rate: each example keeps the points that failed most often, and the end chooses among them
by new draws. Random numbers belong to (seed, example, pass), so that no result depends on the batch.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from rbtools.attacks import losses
from rbtools.attacks.active_examples import wide
from rbtools.attacks.losses import AttackObjective
from rbtools.attacks.steps import distances
from rbtools.attacks.target import Evaluated, Network, differentiate
from rbtools.lazy import torch
from rbtools.registry import param

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.base import Attack
    from rbtools.rng.draws import Draws

CHOICE = 64  # new draws of each point that is left, to choose one
_SLACK = 1e-5  # of a distance, for the rounding of float32


def eot_param() -> Any:
    """The field of the number of draws."""
    return param(
        1,
        "Draws of a randomised model that every gradient, or score without gradients, is the mean of."
        "  [default: 1; where rb-attack finds that a model is randomised, from a pilot]",
        check="positive",
        metavar="N",
        optional=True,
    )


class _Best:
    """For each example the point with the largest value so far: points (N, C, H, W), values (N,)."""

    def __init__(self, images: Tensor) -> None:
        self.points = images.clone()
        self.values = torch.full_like(images.flatten(1)[:, 0], -torch.inf)

    def note(self, rows: Tensor, points: Tensor, values: Tensor, allowed: Tensor) -> None:
        """Take the points (M, C, H, W) of the examples `rows` that are better, of the allowed ones (M,)."""
        better = allowed & (values > self.values[rows])
        self.points[rows] = torch.where(wide(better, points), points, self.points[rows])
        self.values[rows] = torch.where(better, values, self.values[rows])


class MeanOverDraws(Network):
    """The mean over `method.draws_each` draws of a randomised model, for the examples of an attack.

    `logits` are mean logits; `loss_and_gradient` gives the mean loss and its gradient; the draws of an image
    share a batch. A point is still correct unless all draws fail; for an attack that searches for the
    nearest point, unless most of them do.
    """

    def __init__(self, target: Network, method: Attack, images: Tensor, labels: Tensor, draws: Draws) -> None:
        self.target, self.method, self.images, self.labels, self.draws = target, method, images, labels, draws
        self.each, chunk = method.draws_each, target.chunk_size
        super().__init__(target, None if chunk is None else max(chunk // self.each, 1))
        self.gives = target.gives
        self.most = self.each // 2 if method.minimal else 0
        self.rows = torch.arange(len(images), device=images.device)
        # shared with the targets of some of the examples
        self.passes = torch.zeros_like(labels)
        self.by_rate, self.by_margin = _Best(images), _Best(images)
        self._last: tuple[Any, Any] = (None, None)

    def take(self, rows: Tensor | slice) -> Network:
        some = copy(self)
        some.rows, some._last = self.rows[rows], (None, None)
        return some

    def __call__(self, images: Tensor) -> Tensor:
        return self.logits(images)

    def logits(self, images: Tensor) -> Tensor:
        drawn, right = self.in_chunks(len(images), lambda rows: self._drawn(images[rows], self.rows[rows]))
        logits = drawn.mean(1)
        self._last = (logits, right)
        return logits

    def loss_and_gradient(
        self, points: Tensor, objective: AttackObjective, *, everyone: bool = False
    ) -> Evaluated:
        parts = []
        for rows in self.chunks(len(points)):
            goal = objective.take(rows)
            copies = AttackObjective(goal.loss, self._copies(goal.labels), self._copies(goal.targets))
            with torch.enable_grad():
                inputs = points[rows].detach().requires_grad_(True)
                drawn, right = self._drawn(inputs, self.rows[rows])
                logits = drawn.flatten(0, 1)
            loss, gradient = differentiate(self.target, inputs, logits, copies)
            correct = right > self.most
            kept = slice(None) if everyone else correct
            loss = loss.view(-1, self.each).mean(1)
            parts.append(Evaluated(correct, loss[kept], gradient[kept] / self.each))
        return parts[0] if len(parts) == 1 else Evaluated(*map(torch.cat, zip(*parts, strict=True)))

    def still_correct(self, points: Tensor, labels: Tensor, logits: Tensor | None = None) -> Tensor:
        if logits is None or self._last[0] is not logits:
            with torch.no_grad():
                self.logits(points)
        return torch.as_tensor(self._last[1] > self.most)

    def chosen(self, points: Tensor) -> Tensor:
        """Of the attack's points (N, C, H, W), those that it met and the images: for each example the one
        with the fewest right answers in new draws; of equals that of the largest mean margin."""
        best = _Best(self.images)
        everyone = torch.ones_like(self.labels, dtype=torch.bool)
        for candidate in (self.by_margin.points, self.by_rate.points, points, self.images):
            best.note(self.rows, candidate, -self._new_draws(candidate), everyone)
        return best.points

    def _new_draws(self, points: Tensor) -> Tensor:
        """How many of CHOICE draws are right (N,), of draws that no search has seen."""
        total = torch.zeros_like(self.labels)
        with torch.no_grad():
            for first in range(0, CHOICE, self.each):
                for rows in self.chunks(len(points)):
                    logits = self._passed(
                        points[rows], self.rows[rows], "choice", self.rows[rows] * 0 + first
                    )
                    total[rows] += logits.argmax(2).eq(self.labels[rows, None]).sum(1)
        return total.float()

    def _copies(self, rows: Tensor) -> Tensor:
        return rows.repeat_interleave(self.each, 0)

    def _drawn(self, points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (M, draws, K) of some examples, and how many draws are right (M,). Notes the points that
        fail more often than those before, and those of larger mean margin."""
        drawn = self._passed(points, rows, "search", self.passes[rows] * self.each)
        self.passes[rows] += 1
        logits, labels = drawn.detach().flatten(0, 1), self._copies(self.labels[rows])
        right = logits.argmax(1).eq(labels).view(-1, self.each).sum(1)
        margin = losses.margin(logits, labels, labels).view(-1, self.each).mean(1)
        points = points.detach()
        inside = distances(points, self.images[rows], self.method.norm) <= self.method.eps * (1 + _SLACK)
        self.by_rate.note(rows, points, -right.to(margin), inside)
        self.by_margin.note(rows, points, margin, inside)
        return drawn, right

    def _passed(self, points: Tensor, rows: Tensor, stream: str, first: Tensor) -> Tensor:
        """Logits (M, draws, K) of some examples, each from its pass number `first` (M,) on."""
        from rbtools.rng.foreign import Numbers

        passes = first[:, None] + torch.arange(self.each, device=rows.device)
        examples = self._copies(self.draws.examples[rows])
        with Numbers(self.draws.seed, f"model.{stream}.{self.draws.stream}", examples, passes.flatten()):
            logits = self.target.logits(self._copies(points))
        return logits.view(len(points), self.each, logits.shape[1])
