"""SPSA, a score-based attack that estimates gradients from differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks import losses
from rbtools.attacks.active_examples import rows_of, wide
from rbtools.attacks.base import norm_param
from rbtools.attacks.decision import queries_param
from rbtools.attacks.drive import Iterate, SteppedAttack
from rbtools.lazy import torch
from rbtools.registry import param, rare_param
from rbtools.threats import ball

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

    from rbtools.attacks.active_examples import AttackBatch
    from rbtools.rng.draws import Draws

_BETAS, _TINY = (0.9, 0.999), 1e-8


@dataclass(frozen=True, kw_only=True)
class SPSA(SteppedAttack):
    """SPSA (Uesato et al. 2018, arXiv:1802.05666), L-infinity and L2, untargeted.

    The attack uses only the logits of the model. Each step queries the point itself and `samples` pairs of
    points that are moved in opposite directions by random signs times `delta`. The differences of the margin
    estimate its gradient, which Adam follows; the point is then projected onto the ball. An image needs no
    further queries once its point is misclassified. The accuracy is an upper bound for the ball.

    Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,).
    """

    name: ClassVar[str] = "spsa"
    words: ClassVar[str] = "SPSA"
    version: ClassVar[int] = 1
    loss: ClassVar[str] = "margin"
    uses_gradients: ClassVar[bool] = False
    over_draws: ClassVar[bool] = False

    eps: float = 8 / 255
    norm: str = norm_param()
    queries: int = queries_param()
    samples: int = param(64, "Number of pairs of points for each gradient.", check="positive")
    delta: float = rare_param(0.01, "Change of each value in a pair, for pixels in [0, 1].", check="positive")
    lr: float = param(0.01, "Learning rate of Adam.", check="positive")

    @property
    def any_counts(self) -> bool:
        return False

    @property
    def most_passes(self) -> int:
        return self.queries

    @property
    def length(self) -> int:
        """Each step makes 2 * samples + 1 queries, except the last one, which only queries the point."""
        return max((self.queries - 1) // (2 * self.samples + 1), 0) + 1

    def shortened(self, steps: int) -> Self:
        return replace(self, queries=steps * (2 * self.samples + 1))

    def begin(self, batch: AttackBatch, restart: int) -> _Spsa:
        zero = torch.zeros_like(batch.images)
        broken = torch.zeros_like(batch.labels, dtype=torch.bool)
        goal, draws = batch.goal(losses.margin), batch.draws.child("signs")
        return _Spsa(batch.images, batch.images, goal, draws, broken, zero, zero)

    def prepare(self, state: _Spsa, step: int, due: bool) -> object:
        return None if due and bool(state.broken.all()) else ()

    def ask(self, state: _Spsa, step: int) -> Tensor:
        points, room = state.points[:, None], self.queries - step * (2 * self.samples + 1) - 1
        if room < 2 * self.samples:
            return points
        signs = self.signs(state, step) * self.delta
        return torch.cat([points, points + signs, points - signs], 1).clamp(0, 1)

    def signs(self, state: _Spsa, step: int) -> Tensor:
        """Random signs (N, samples, C, H, W)."""
        size = self.samples * state.images[0].numel()
        words = state.draws.bits(-(-size // 32), step)
        place = torch.arange(32, device=words.device)
        bits = ((words[:, :, None] >> place) & 1).flatten(1)[:, :size]
        return (2 * bits - 1).to(state.images).view(-1, self.samples, *state.images.shape[1:])

    def question(self, state: _Spsa, everyone: bool) -> Callable[..., tuple[Tensor, Tensor]]:
        """The margins (N, B) at the points (N, B, C, H, W), and whether the first point is correct (N,). No
        queries are made for broken images."""

        def asked(points: Tensor, goal: losses.AttackObjective) -> tuple[Tensor, Tensor]:
            rows, count = rows_of(~state.broken), points.shape[1]
            some = points[rows]
            owners = torch.arange(len(points), device=points.device)[rows].repeat_interleave(count)
            logits = state.model.take(owners).logits(some.flatten(0, 1))
            labels = goal.labels[rows]
            first = logits.view(len(some), count, -1)[:, 0]
            correct = state.model.take(owners[::count]).still_correct(some[:, 0], labels, first)
            values = goal.take(owners)(logits).view(-1, count)
            if isinstance(rows, slice):
                return values, correct
            every = values.new_zeros(len(points), count)
            every[rows] = values
            right = torch.zeros_like(state.broken)
            right[rows] = correct
            return every, right

        return asked

    def tell(self, state: _Spsa, seen: tuple[Tensor, Tensor], step: int) -> None:
        values, correct = seen
        state.broken = state.broken | ~correct
        if values.shape[1] == 1:  # the last query
            return
        up, down = values[:, 1:].to(state.points).chunk(2, 1)
        signs = self.signs(state, step)
        gradient = ((up - down)[:, :, None, None, None] * signs).mean(1) / (2 * self.delta)
        state.mean = state.mean.lerp(gradient, 1 - _BETAS[0])
        state.square = state.square.lerp(gradient.square(), 1 - _BETAS[1])
        mean = state.mean / (1 - _BETAS[0] ** (step + 1))
        scale = (state.square / (1 - _BETAS[1] ** (step + 1))).sqrt() + _TINY
        moved = ball.project(state.points + self.lr * mean / scale, state.images, self.eps, self.norm)
        state.points = torch.where(wide(state.broken, moved), state.points, moved)


@dataclass
class _Spsa(Iterate):
    """`broken` (N,) marks misclassified points, and `mean` and `square` (N, C, H, W) are Adam's moments."""

    draws: Draws
    broken: Tensor
    mean: Tensor
    square: Tensor
