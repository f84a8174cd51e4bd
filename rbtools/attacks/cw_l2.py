"""CW-L2: the nearest adversarial example in L2 (Carlini and Wagner 2017, arXiv:1608.04644)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks import losses
from rbtools.attacks.active_examples import ExampleRows, check_schedule, misclassified, wide
from rbtools.attacks.minimal_norm import MinimalNormAttack
from rbtools.attacks.oracle import Oracle
from rbtools.lazy import torch
from rbtools.registry import param, rare_param

if TYPE_CHECKING:
    from torch import Tensor


BETAS = (0.9, 0.999)
ADAM_EPS = 1e-8
INSIDE = 1 - 1e-6  # moves the start off the border of the box, where tanh has no inverse
NO_BETTER = 0.9999  # an example stops if a tenth of the steps does not reduce its loss below this share


@dataclass(frozen=True, kw_only=True)
class CWL2(MinimalNormAttack):
    """The unbounded L2 attack of Carlini and Wagner (2017, arXiv:1608.04644).

    The attack minimises |x' - x|^2 + c * max(z_y - (largest other logit), -kappa) with Adam over w, where x'
    = (tanh(w) + 1) / 2. For each example, the attack searches for the smallest c that succeeds. In each run,
    an example stops if its objective does not improve during a tenth of the steps. The search does not use
    eps, but only adversarial examples within eps count as a success. `run` also returns the distances as
    "distance" (infinite if there is no adversarial example).

    Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,). Images without an
    adversarial example within eps are returned unchanged.
    """

    name: ClassVar[str] = "cw-l2"
    version: ClassVar[int] = 1
    norm = "l2"
    words: ClassVar[str] = "CW"
    implied: ClassVar[str] = "l2"
    loss: ClassVar[str] = "margin"

    eps: float | None = 8.0  # type: ignore[assignment]  # None: any distance
    steps: int = param(100, "Number of Adam steps in each run.", check="positive")
    searches: int = param(9, "Number of runs in the search for the weight c.", check="positive")
    c: float = rare_param(0.01, "Weight of the margin in the first run.", check="positive")
    lr: float = param(0.01, "Learning rate of Adam.", check="positive")
    kappa: float = param(
        0.0, "Logit margin from which the attack on an image counts as successful.", check="non-negative"
    )

    @property
    def most_passes(self) -> int:
        return super().most_passes * self.searches

    def search(self, model: Oracle, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        best, distance = images.clone(), torch.full_like(images.flatten(1)[:, 0], torch.inf)
        clean_wrong = ~model.still_correct(images, labels)
        distance[clean_wrong] = 0.0
        left = (~clean_wrong).nonzero()[:, 0]
        low, high = torch.zeros_like(distance), torch.full_like(distance, torch.inf)
        weight = torch.full_like(distance, self.c)
        for _ in range(self.searches):
            if not len(left):
                break
            found = model.partial.open(model)
            if found is None:
                points = self._descend(model.take(left), images[left], labels[left], weight[left])
                found = model.partial.close(dict(zip(("points", "distance"), points, strict=True)))
            nearest, size = found["points"], found["distance"]
            nearer = size < distance[left]
            best[left[nearer]], distance[left[nearer]] = nearest[nearer], size[nearer]
            done = size < torch.inf
            high[left] = torch.where(done, weight[left].minimum(high[left]), high[left])
            low[left] = torch.where(done, low[left], weight[left].maximum(low[left]))
            middle = (low + high) / 2
            weight = torch.where(high < torch.inf, middle, weight * 10)
        return best, distance

    def _descend(self, model: Oracle, images: Tensor, labels: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Make one run of Adam. Returns the nearest fooling points and their distances (N,), or infinity."""
        nearest, distance = images.clone(), torch.full_like(c, torch.inf)
        w = torch.atanh((2 * images - 1) * INSIDE)
        goal = losses.AttackObjective(losses.margin, labels, labels)
        state = _CWState(
            row=torch.arange(len(images), device=images.device),
            images=images,
            goal=goal,
            c=c,
            w=w,
            mean=torch.zeros_like(w),
            square=torch.zeros_like(w),
            then=torch.full_like(c, torch.inf),
            going=torch.ones_like(c, dtype=torch.bool),
        )
        schedule, stopped = check_schedule(images.device), False
        for number in range(1, self.steps + 1):
            find = functools.partial(_value, model.take(state.row), state, self.kappa)
            logits, total, gap, size, gradient = model.in_chunks(len(state.row), find)
            good = (
                (gap >= self.kappa if self.kappa > 0 else gap > 0)
                & (size < distance[state.row])
                & state.going
            )
            point = model.seen((torch.tanh(state.w) + 1) / 2)
            good = misclassified(good, model.take(state.row), point, state.goal.labels, logits)
            nearest[state.row] = torch.where(wide(good, point), point, nearest[state.row])
            distance[state.row] = torch.where(good, size, distance[state.row])
            _adam(state, gradient, number, self.lr)
            if number % max(self.steps // 10, 1) == 0:
                state.going, stopped = state.going & (total <= NO_BETTER * state.then), True
                state.then = total
            if stopped and schedule.due(number):
                state.take(state.going.nonzero()[:, 0])
                stopped = False
                if not len(state.row):
                    break
        return nearest, distance


@dataclass
class _CWState(ExampleRows):
    row: Tensor
    images: Tensor
    goal: losses.AttackObjective
    c: Tensor
    w: Tensor
    mean: Tensor
    square: Tensor
    then: Tensor
    going: Tensor


def _value(model: Oracle, state: _CWState, kappa: float, rows: slice) -> tuple[Tensor, ...]:
    """Logits (N, K), objective, margin and distance (N,), and gradient with respect to w, for some rows."""
    with torch.enable_grad():
        w = state.w[rows].detach().requires_grad_(True)
        point = model.seen((torch.tanh(w) + 1) / 2)
        model = model.take(rows)
        logits = model.logits(point)
        if not logits.requires_grad:
            model.need_constant(point, logits)
        gap = state.goal.take(rows)(logits)
        squared = (point - state.images[rows]).square().flatten(1).sum(1)
        total = squared + state.c[rows] * (-gap).clamp_min(-kappa)
        (gradient,) = torch.autograd.grad(total.sum(), w)
    return logits.detach(), total.detach(), gap.detach(), squared.detach().sqrt(), gradient


def _adam(state: _CWState, gradient: Tensor, number: int, rate: float) -> None:
    first, second = BETAS
    state.mean = first * state.mean + (1 - first) * gradient
    state.square = second * state.square + (1 - second) * gradient.square()
    mean, square = state.mean / (1 - first**number), state.square / (1 - second**number)
    state.w = state.w - rate * mean / (square.sqrt() + ADAM_EPS)
