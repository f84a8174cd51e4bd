"""SurFree, an attack on labels that turns the boundary point along circles."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks.active_examples import rows_of, wide
from rbtools.attacks.boundary import without
from rbtools.attacks.decision import BISECT, SEARCH, Decision, DecisionAttack, queries_param
from rbtools.lazy import torch
from rbtools.registry import param
from rbtools.threats import ball

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import AttackBatch

_WIDEST, _FACTOR = math.radians(30), 0.98  # largest first angle, and how it changes
_MOST = math.radians(80)  # limit of the angles
_ANGLES = 3  # angles of each sign that are tried in a direction
_TOLERANCE = 0.01  # for the cosine of an angle


@dataclass(frozen=True, kw_only=True)
class SurFree(DecisionAttack):
    """SurFree (Maho, Furon and Le Merrer 2021, arXiv:2011.12807), L2, untargeted.

    The attack uses only predicted classes. It starts at a random image and moves along the line to the clean
    image until the class changes. Then it chooses random low-frequency directions, each orthogonal to the
    last `kept` ones. For each direction, it queries points on the circle through the boundary point and the
    clean image, at angles of both signs, from the largest to the smallest. From the first misclassified
    point, the angle grows while the point stays misclassified, and a bisection ends the step. Only
    misclassified images within eps count as a success.

    Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,). Images for which
    no misclassified image within eps was found are returned unchanged.
    """

    name: ClassVar[str] = "surfree"
    words: ClassVar[str] = "SurFree"
    version: ClassVar[int] = 1
    norm = "l2"

    eps: float | None = 0.5  # type: ignore[assignment]  # None: any distance
    queries: int = queries_param()
    frequencies: float = param(
        0.5, "Share of the frequencies along each side that random directions contain.", check="fraction"
    )
    kept: int = param(100, "Number of earlier directions to which a new one is orthogonal.", check="positive")

    def begin(self, batch: AttackBatch, restart: int) -> _Turning:
        state = _Turning(**self.fields(batch))
        channels, *sides = state.images.shape[1:]
        state.waves = [max(math.ceil(side * self.frequencies), 1) for side in sides]
        count = min(self.kept, max(channels * math.prod(state.waves) // 2, 1))
        state.earlier = torch.zeros_like(state.images)[:, None].repeat(1, count, 1, 1, 1)
        state.directions, state.side = torch.zeros_like(state.asked), torch.zeros_like(state.images)
        state.widest, state.turn = torch.full_like(state.length, _WIDEST), torch.zeros_like(state.asked)
        state.sign = torch.ones_like(state.length)
        return state

    def limit(self, state: _Turning) -> int:
        return self.length if state.phase == SEARCH else super().limit(state)

    def wanted(self, state: _Turning) -> Tensor:
        return state.distance.isfinite() if state.phase == SEARCH else super().wanted(state)

    def propose(self, state: _Turning) -> Tensor:
        if state.phase != SEARCH:
            return super().propose(state)
        state.redirect()
        return state.turned(state.angle())[:, None]

    def learn(self, state: _Turning, points: Tensor, wrong: Tensor) -> None:
        if state.phase != SEARCH:
            super().learn(state, points, wrong)
            return
        state.advance(wrong[:, 0], state.asking[:, 0])

    def follow(self, state: _Turning) -> int:
        if state.phase != BISECT:
            return state.bisect()
        state.settle()
        state.low, state.high = torch.zeros_like(state.low), torch.zeros_like(state.high)
        return SEARCH


@dataclass
class _Turning(Decision):
    """`side` (N, C, H, W) is the current direction, `directions` (N,) is its number, and `earlier` (N, K, C,
    H, W) are the directions before it. `turn` (N,) is the number of the next angle in it, up to `widest`
    (N,). Afterwards, `low` (N,) is the largest misclassified angle, with the sign `sign` (N,), and `high`
    (N,) is the smallest larger angle that is not misclassified, or 0 if none is known. `waves` are the
    numbers of frequencies of a direction."""

    waves: list[int] = field(init=False)
    earlier: Tensor = field(init=False)
    directions: Tensor = field(init=False)
    side: Tensor = field(init=False)
    widest: Tensor = field(init=False)
    turn: Tensor = field(init=False)
    sign: Tensor = field(init=False)

    def redirect(self) -> None:
        """Choose a new direction for the images that have none."""
        new = self.turn.eq(0) & self.low.eq(0)
        rows = rows_of(new)
        if isinstance(rows, torch.Tensor) and not bool(rows.any()):
            return
        away = ball.unit((self.points - self.images)[rows])
        noise = self.draws.child("sides").normal((self.images.shape[1], *self.waves), draw=self.place)[rows]
        earlier = self.earlier[rows]
        side = without(smooth(noise, *self.images.shape[2:]), away)
        along = (earlier * side[:, None]).sum(dim=(2, 3, 4), keepdim=True)
        side = ball.unit(without(side - (along * earlier).sum(1), away))
        self.side = self.side.clone()
        self.side[rows] = torch.where(wide(new[rows], side), side, self.side[rows])
        place = self.directions % self.earlier.shape[1]
        chosen = new[:, None] & (torch.arange(self.earlier.shape[1], device=place.device) == place[:, None])
        self.earlier = torch.where(chosen[:, :, None, None, None], self.side[:, None], self.earlier)
        self.directions = self.directions + new

    def angle(self) -> Tensor:
        """The angles (N,) that the search queries next."""
        number = self.turn // 2
        tried = self.widest * (1 - number / _ANGLES) * (1 - 2 * (self.turn % 2))
        grown = torch.where(self.high > 0, (self.low + self.high) / 2, self.low + self.widest / _ANGLES)
        return torch.where(self.low > 0, self.sign * grown, tried)

    def turned(self, angle: Tensor) -> Tensor:
        """The points at these angles (N,) from the boundary point, on circles through the clean image."""
        angle, length = wide(angle, self.images), wide(self.length, self.images)
        away = ball.unit(self.points - self.images)
        change = angle.cos() * away + angle.sin() * self.side
        return (self.images + length * angle.cos() * change).clamp(0, 1)

    def advance(self, wrong: Tensor, asked: Tensor) -> None:
        """Update the angles from the answers (N,)."""
        angle, found = self.angle(), self.low > 0
        first = asked & ~found & wrong
        above = torch.where(self.turn < 2, 0.0, angle.abs() + self.widest / _ANGLES)
        self.sign = torch.where(first, angle.sign(), self.sign)
        self.high = torch.where(first, above, torch.where(asked & found & ~wrong, angle.abs(), self.high))
        self.low = torch.where(asked & wrong, angle.abs(), self.low)
        self.turn = torch.where(asked & ~found & ~wrong, self.turn + 1, self.turn)
        lost = self.turn == 2 * _ANGLES
        narrow = (self.low.cos() - self.high.cos()) <= _TOLERANCE
        won = (self.low > 0) & (((self.high > 0) & narrow) | (self.low > _MOST))
        ends = self.turned(self.sign * self.low)
        length = ball.distances(ends, self.images, self.norm)
        nearer = won & (length < self.length)
        self.points = torch.where(wide(nearer, ends), ends, self.points)
        self.length = torch.where(nearer, length, self.length)
        wider = torch.where(won, self.widest / _FACTOR, self.widest).clamp_max(_MOST)
        self.widest = torch.where(lost, self.widest * _FACTOR, wider)
        self.turn = torch.where(lost | won, 0, self.turn)
        self.low, self.high = torch.where(won, 0.0, self.low), torch.where(won, 0.0, self.high)


def smooth(coefficients: Tensor, height: int, width: int) -> Tensor:
    """Images (N, C, height, width) with these coefficients (N, C, M, K) of the lowest frequencies of the
    discrete cosine transform."""
    return _waves(height, coefficients, 2) @ coefficients @ _waves(width, coefficients, 3).T


def _waves(size: int, like: Tensor, axis: int) -> Tensor:
    """The orthonormal cosines (size, M) of the discrete cosine transform."""
    place = torch.arange(size, device=like.device).to(like) + 0.5
    number = torch.arange(like.shape[axis], device=like.device).to(like)
    waves = (math.pi / size * place[:, None] * number).cos() * math.sqrt(2 / size)
    return torch.where(number == 0, waves / math.sqrt(2), waves)
