"""HopSkipJump, an attack on labels that estimates the normal of the decision boundary."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks.active_examples import wide
from rbtools.attacks.base import norm_param
from rbtools.attacks.decision import (
    BISECT,
    REACH,
    SEARCH,
    Decision,
    DecisionAttack,
    directions,
    queries_param,
)
from rbtools.lazy import torch
from rbtools.registry import param
from rbtools.threats import ball

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import AttackBatch

_JUMP = SEARCH + 1
_JUMPS = 16  # lengths of a jump, each half of the one before
_MOST = 10000  # samples of a direction
_FIRST_REACH = 0.1  # distance of the samples for the first direction from the boundary point
_AT_ONCE = 1 << 17  # pixel values per image in one step of queries


@dataclass(frozen=True, kw_only=True)
class HopSkipJump(DecisionAttack):
    """HopSkipJump (Chen, Jordan and Wainwright 2020, arXiv:1904.02144), L2 and L-infinity, untargeted.

    The attack uses only predicted classes. It starts at a random image and moves along the line to the clean
    image until the class changes. In round t, `samples` * sqrt(t) random points near this boundary point show
    the direction in which more points are misclassified. A jump in this direction has the distance divided by
    sqrt(t) as its length, which is halved until the point is misclassified. The jump is followed by a
    bisection between the point and the clean image. Only misclassified images within eps count as a success.
    For 8-bit images, the random points are far enough from the boundary point that most pixels change.

    Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,). Images for which
    no misclassified image within eps was found are returned unchanged.
    """

    name: ClassVar[str] = "hopskipjump"
    words: ClassVar[str] = "HopSkipJump"
    version: ClassVar[int] = 1

    eps: float | None = 8 / 255  # type: ignore[assignment]  # None: any distance
    norm: str = norm_param()
    queries: int = queries_param()
    samples: int = param(100, "Number of random points in the first round.", check="positive")

    def begin(self, batch: AttackBatch, restart: int) -> _Jumping:
        return _Jumping(**self.fields(batch))

    def at_once(self, state: _Jumping) -> int:
        """The number of samples per image in a step, which depends only on the size of the images."""
        return min(max(_AT_ONCE // state.images[0].numel(), 4), self.sampled(state))

    def sampled(self, state: _Jumping) -> int:
        return min(int(self.samples * math.sqrt(state.round + 1)), _MOST)

    def limit(self, state: _Jumping) -> int:
        if state.phase == SEARCH:
            return math.ceil(self.sampled(state) / self.at_once(state))
        return _JUMPS if state.phase == _JUMP else super().limit(state)

    def wanted(self, state: _Jumping) -> Tensor:
        if state.phase == SEARCH:
            return state.distance.isfinite()
        if state.phase == _JUMP:
            return state.distance.isfinite() & ~state.moved
        return super().wanted(state)

    def propose(self, state: _Jumping) -> Tensor:
        if state.phase == SEARCH:
            count, shape = self.at_once(state), tuple(state.images.shape[1:])
            count = min(count, self.sampled(state) - state.place * count)
            draws = state.draws.child(f"round{state.round}")
            chosen = directions(draws, count, shape, state.place, self.norm)
            return chosen.mul_(self.spread(state)).add_(state.points[:, None]).clamp_(0, 1)
        if state.phase == _JUMP:
            size = state.length / math.sqrt(state.round + 1) / 2**state.place
            return (state.points + wide(size, state.points) * state.direction).clamp(0, 1)[:, None]
        return super().propose(state)

    def spread(self, state: _Jumping) -> Tensor:
        """The distance (N, 1, 1, 1, 1) of random points from the boundary point."""
        size = state.images[0].numel()
        reach = state.length * REACH if state.round else torch.full_like(state.length, _FIRST_REACH)
        reach = reach.clamp_min(math.sqrt(size) / 255) if state.model.eight_bit else reach
        return reach.view(-1, 1, 1, 1, 1)

    def learn(self, state: _Jumping, points: Tensor, wrong: Tensor) -> None:
        if state.phase == SEARCH:
            change = state.model.seen(points) - state.points[:, None]
            state.count = state.count + state.asking.sum(1)
            state.outside = state.outside + wrong.sum(1)
            state.every = state.every + (change * state.asking[:, :, None, None, None]).sum(1)
            state.beyond = state.beyond + change.mul_(wrong[:, :, None, None, None]).sum(1)
        elif state.phase == _JUMP:
            state.far = torch.where(wide(wrong[:, 0], state.far), points[:, 0], state.far)
            state.moved = state.moved | wrong[:, 0]
        else:
            super().learn(state, points, wrong)

    def follow(self, state: _Jumping) -> int:
        if state.phase == BISECT:
            state.settle()
            state.every = state.beyond = torch.zeros_like(state.images)
            state.count = state.outside = torch.zeros_like(state.length)
            return SEARCH
        if state.phase == SEARCH:
            state.direction = state.estimate(self.norm)
            state.moved = torch.zeros_like(state.moved)
            return _JUMP
        state.round += state.phase == _JUMP
        return state.bisect()


@dataclass
class _Jumping(Decision):
    """`every` and `beyond` (N, C, H, W) are the sums of the changes over all samples and the misclassified
    ones, which number `count` and `outside` (N,). `direction` (N, C, H, W) is the direction of the jump."""

    every: Tensor = field(init=False)
    beyond: Tensor = field(init=False)
    count: Tensor = field(init=False)
    outside: Tensor = field(init=False)
    direction: Tensor = field(init=False)

    def estimate(self, norm: str) -> Tensor:
        """The mean of the changes, weighted by 1 for misclassified samples and by -1 for others, minus the
        mean of these weights if they differ. Returns it with L2 norm 1, or its signs in L-infinity."""
        share = wide(self.outside / self.count.clamp_min(1), self.every)
        mixed = self.beyond - share * self.every
        mean = torch.where(share == 0, -self.every, torch.where(share == 1, self.every, mixed))
        return mean.sign() if norm == "linf" else ball.unit(mean)
