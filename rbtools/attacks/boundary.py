"""The boundary attack, a random walk along the decision boundary."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks.active_examples import wide
from rbtools.attacks.decision import BISECT, SEARCH, Decision, DecisionAttack, directions, queries_param
from rbtools.lazy import torch
from rbtools.threats import ball

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import AttackBatch

_STEP = 0.01  # first length of both steps, as a share of the distance
_FACTOR = 1.5  # the factor by which a length changes
_WINDOW = 30  # steps of a kind, after which its length may change
_AROUND = (0.2, 0.5)  # range of desired shares of misclassified points on the sphere
_TOWARDS = (0.1, 0.25)  # range of desired shares of misclassified points nearer to the image


@dataclass(frozen=True, kw_only=True)
class Boundary(DecisionAttack):
    """The boundary attack (Brendel et al. 2018, arXiv:1712.04248), L2, untargeted.

    The attack uses only predicted classes. It starts at a random image and moves along the line to the clean
    image until the class changes. Then it makes random steps on the sphere around the clean image. If the
    point on the sphere is misclassified, the attack tries a point nearer to the clean image, and moves there
    if it is also misclassified. The lengths of both steps are adapted to their success rates. Only
    misclassified images within eps count as a success.

    Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,). Images for which
    no misclassified image within eps was found are returned unchanged.
    """

    name: ClassVar[str] = "boundary"
    words: ClassVar[str] = "Boundary"
    version: ClassVar[int] = 1
    norm = "l2"

    eps: float | None = 0.5  # type: ignore[assignment]  # None: any distance
    queries: int = queries_param()

    def begin(self, batch: AttackBatch, restart: int) -> _Walk:
        state = _Walk(**self.fields(batch))
        zero = torch.zeros_like(state.length)
        state.around = state.towards = zero + _STEP
        state.tried_around = state.won_around = state.tried_towards = state.won_towards = zero
        return state

    def limit(self, state: _Walk) -> int:
        return self.length if state.phase == SEARCH else super().limit(state)

    def wanted(self, state: _Walk) -> Tensor:
        return state.distance.isfinite() if state.phase == SEARCH else super().wanted(state)

    def propose(self, state: _Walk) -> Tensor:
        if state.phase != SEARCH:
            return super().propose(state)
        shape, away = tuple(state.images.shape[1:]), state.points - state.images
        side = directions(state.draws.child("sides"), 1, shape, state.place, self.norm)[:, 0]
        side = ball.unit(without(side, ball.unit(away)))
        length = wide(state.length, away)
        round_ = ball.unit(away + wide(state.around, away) * length * side) * length
        nearer = wide(1 - state.towards, away) * (state.far - state.images)
        change = torch.where(wide(state.moved, away), nearer, round_)
        return (state.images + change).clamp(0, 1)[:, None]

    def learn(self, state: _Walk, points: Tensor, wrong: Tensor) -> None:
        """Here `moved` marks the images for which the point on the sphere, `far`, is misclassified."""
        if state.phase != SEARCH:
            super().learn(state, points, wrong)
            return
        fooled, on_sphere = wrong[:, 0], state.asking[:, 0] & ~state.moved
        nearer = state.asking[:, 0] & state.moved
        state.far = torch.where(wide(fooled & on_sphere, state.far), points[:, 0], state.far)
        state.points = torch.where(wide(fooled & nearer, state.far), points[:, 0], state.points)
        state.length = ball.distances(state.points, state.images, self.norm)
        state.adapt("around", on_sphere, fooled, _AROUND)
        state.adapt("towards", nearer, fooled, _TOWARDS)
        state.moved = fooled & on_sphere

    def follow(self, state: _Walk) -> int:
        if state.phase != BISECT:
            return state.bisect()
        state.settle()
        state.moved = torch.zeros_like(state.moved)
        return SEARCH


@dataclass
class _Walk(Decision):
    """The lengths (N,) of the steps `around` and `towards` the clean image, as shares of the distance, and
    how many steps of each kind were tried, and succeeded, since the length changed."""

    around: Tensor = field(init=False)
    towards: Tensor = field(init=False)
    tried_around: Tensor = field(init=False)
    won_around: Tensor = field(init=False)
    tried_towards: Tensor = field(init=False)
    won_towards: Tensor = field(init=False)

    def adapt(self, kind: str, made: Tensor, won: Tensor, wanted: tuple[float, float]) -> None:
        """Count the steps that were `made` and `won` (N,), and adapt the length at the end of a window."""
        tried = getattr(self, f"tried_{kind}") + made
        wins, length = getattr(self, f"won_{kind}") + (made & won), getattr(self, kind)
        full, share = tried >= _WINDOW, wins / tried.clamp_min(1)
        length = torch.where(full & (share > wanted[1]), length * _FACTOR, length)
        length = torch.where(full & (share < wanted[0]), length / _FACTOR, length)
        setattr(self, kind, length.clamp_max(0.5))
        setattr(self, f"tried_{kind}", torch.where(full, 0.0, tried))
        setattr(self, f"won_{kind}", torch.where(full, 0.0, wins))


def without(vectors: Tensor, units: Tensor) -> Tensor:
    """Remove from vectors (N, C, H, W) their components along unit vectors (N, C, H, W)."""
    along = (vectors * units).sum(dim=(1, 2, 3), keepdim=True)
    return vectors - along * units
