"""RayS, an attack on labels that flips the signs of blocks of pixels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks.active_examples import wide
from rbtools.attacks.decision import SEARCH, Decision, DecisionAttack, queries_param
from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import AttackBatch

_TOLERANCE = 1e-3  # for a radius, in L2


@dataclass(frozen=True, kw_only=True)
class RayS(DecisionAttack):
    """RayS (Chen and Gu 2020, arXiv:2006.12792, algorithm 3), L-infinity, untargeted.

    The attack uses only predicted classes and needs no start. It searches for the vector of signs in whose
    direction a misclassified image is nearest. It flips the signs of blocks of values, first of the complete
    image, then of its halves, and so on. If the image with the flipped signs is misclassified at the smallest
    radius so far, bisection finds the new radius. The search ends with blocks of one value, and then begins
    again with these. Only misclassified images within eps count as a success.

    Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,). Images for which
    no misclassified image within eps was found are returned unchanged.
    """

    name: ClassVar[str] = "rays"
    words: ClassVar[str] = "RayS"
    version: ClassVar[int] = 1
    random: ClassVar[bool] = False
    norm = "linf"

    eps: float | None = 8 / 255  # type: ignore[assignment]  # None: any distance
    queries: int = queries_param()

    def begin(self, batch: AttackBatch, restart: int) -> _Rays:
        state = _Rays(**self.fields(batch))
        state.phase = SEARCH
        state.signs = torch.ones_like(state.images)
        state.blocks, state.block = torch.ones_like(state.asked), torch.zeros_like(state.asked)
        return state

    def limit(self, state: _Rays) -> int:
        return self.length

    def follow(self, state: _Rays) -> int:
        return SEARCH

    def wanted(self, state: _Rays) -> Tensor:
        return torch.ones_like(state.moved)

    def propose(self, state: _Rays) -> Tensor:
        radius = torch.where(state.moved, (state.low + state.high) / 2, state.high)
        signs = torch.where(wide(state.moved, state.signs), state.signs, state.flipped())
        return (state.images + wide(radius, signs) * signs).clamp(0, 1)[:, None]

    def learn(self, state: _Rays, points: Tensor, wrong: Tensor) -> None:
        """Here `moved` marks the images in a bisection between `low` and `high`."""
        fooled, middle = wrong[:, 0] & state.asking[:, 0], (state.low + state.high) / 2
        state.signs = torch.where(wide(fooled & ~state.moved, points[:, 0]), state.flipped(), state.signs)
        state.high = torch.where(fooled & state.moved, middle, state.high)
        state.low = torch.where(state.moved & ~fooled, middle, torch.where(state.moved, state.low, 0.0))
        size = state.images[0].numel()
        going = (state.high - state.low) * size**0.5 > _TOLERANCE
        if state.model.eight_bit:
            going &= (state.high * 255).round() > (state.low * 255).round() + 1
        begun = state.moved | fooled
        over = ~(begun & going)  # the search goes on to the next block
        state.moved = begun & going
        last = (state.block + 1) * state.block_size() >= size
        state.blocks = torch.where(over & last, (2 * state.blocks).clamp_max(2 * size), state.blocks)
        state.block = torch.where(over, torch.where(last, 0, state.block + 1), state.block)


@dataclass
class _Rays(Decision):
    """`signs` (N, C, H, W) are the best signs so far, at the radius `high` (N,). Next, the attack flips the
    signs of the block `block` (N,) out of `blocks` (N,)."""

    signs: Tensor = field(init=False)
    blocks: Tensor = field(init=False)
    block: Tensor = field(init=False)

    def block_size(self) -> Tensor:
        return (self.images[0].numel() + self.blocks - 1) // self.blocks

    def flipped(self) -> Tensor:
        place = torch.arange(self.images[0].numel(), device=self.blocks.device)
        chosen = place // self.block_size()[:, None] == self.block[:, None]
        return torch.where(chosen.view_as(self.signs), -self.signs, self.signs)
