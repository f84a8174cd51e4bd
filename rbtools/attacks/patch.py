"""Patches, which replace a square of the image."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.attacks.drive import Iterate, SteppedAttack
from rbtools.lazy import F, torch
from rbtools.probabilistic.distributions import Noise, signed_uniform
from rbtools.registry import param
from rbtools.threats.base import Threat

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import AttackBatch
    from rbtools.attacks.losses import AttackObjective
    from rbtools.rng.draws import Draws

_GREY = 0.5  # of the patch that searches the place


@dataclass(frozen=True, kw_only=True)
class Patch(Threat):
    """A square with any content, anywhere in the image. A point is an image.

    The square covers about the share `area` of the image. Its side is rounded to a whole number of pixels, at
    most the shorter side of the image, and at least one pixel unless `area` is 0.
    """

    name: ClassVar[str] = "patch"
    strength: ClassVar[str] = "area"

    area: float = 0.05

    @classmethod
    def axis(cls, word: str) -> str:
        return "share of the image's area"

    def side(self, images: Tensor) -> int:
        """The side of the square in pixels, for images (N, C, H, W)."""
        height, width = images.shape[2:]
        if self.empty:
            return 0
        return min(max(round(math.sqrt(self.area * height * width)), 1), height, width)

    def project(self, points: Tensor, images: Tensor) -> Tensor:
        """Keep the square in which the point differs most from its image."""
        side = self.side(images)
        if not side:
            return images.clone()
        changes = F.avg_pool2d((points - images).abs().sum(1, keepdim=True), side, stride=1).flatten(1)
        columns = images.shape[3] - side + 1
        at = changes.argmax(1)
        inside = squares(torch.stack([at // columns, at % columns], 1), side, images)
        return torch.where(inside, points.clamp(0, 1), images)

    def contains(self, points: Tensor, images: Tensor) -> Tensor:
        changed, side = (points != images).any(1), self.side(images)
        small = [_extent(changed.any(other)) <= side for other in (1, 2)]
        values = points.flatten(1)
        return small[0] & small[1] & values.amin(1).ge(0) & values.amax(1).le(1)


def _extent(marks: Tensor) -> Tensor:
    """The distance (N,) from the first to the last mark in each row of bool (N, L), both included."""
    numbers = torch.arange(marks.shape[1], device=marks.device)
    last = torch.where(marks, numbers, -1).amax(1)
    first = torch.where(marks, numbers, marks.shape[1]).amin(1)
    return torch.where(marks.any(1), last - first + 1, 0)


def squares(corners: Tensor, side: int, images: Tensor) -> Tensor:
    """Masks (N, 1, H, W) of squares, from the row and column of their upper left corners (N, 2)."""
    masks = []
    for axis, length in ((0, images.shape[2]), (1, images.shape[3])):
        offset = torch.arange(length, device=images.device) - corners[:, axis, None]
        masks.append((offset >= 0) & (offset < side))
    return (masks[0][:, :, None] & masks[1][:, None, :])[:, None]


@dataclass(frozen=True, kw_only=True)
class PatchAttack(SteppedAttack):
    """A square patch with the worst content and the worst place for each image.

    First a grey patch is tried at all places with the given `stride`, as in the rectangular occlusion attack
    (Wu, Tong and Vorobeychik 2020, arXiv:1909.09552). At the place with the largest loss, `steps` steps of
    projected gradient ascent then change the pixels of the patch. The loss is the cross-entropy. An example
    is dropped at the first image that fools the model. The accuracy is an upper bound for the threat.

    Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,).
    """

    name: ClassVar[str] = "patch"
    version: ClassVar[int] = 1
    words: ClassVar[str] = "Patch"
    loss: ClassVar[str] = "ce"
    within: ClassVar[type[Threat]] = Patch
    random: ClassVar[bool] = False

    area: float = param(
        0.05, "Share of the image that the patch covers (at least one pixel).", check="fraction"
    )
    steps: int = param(50, "Number of gradient steps at the chosen place.", check="non-negative")
    step_size: float = param(0.05, "Step size, for pixels in [0, 1].", check="positive")
    stride: int | None = param(
        None,
        "Distance between the places that are tried, in pixels.  [default: half the side of the patch]",
        check="positive",
    )

    @property
    def most_passes(self) -> int:
        return 2 * self.steps + round(4 / max(self.area, 0.001))

    def said(self) -> dict[str, Any]:
        return {**super().said(), "bound": "upper"}

    def begin(self, batch: AttackBatch, restart: int) -> _PatchState:
        threat = Patch(area=self.area)
        side = threat.side(batch.images)
        apart = self.stride or max(side // 2, 1)
        rows, columns = (
            [*range(0, length - side, apart), length - side] for length in batch.images.shape[2:]
        )
        places = [(row, column) for row in rows for column in columns]
        lowest = torch.full_like(batch.images.flatten(1)[:, 0], -torch.inf)
        place = torch.zeros(len(batch), 2, dtype=torch.int64, device=batch.images.device)
        goal = self.goal(batch)
        return _PatchState(batch.images, batch.images, goal, places, side, place, place, lowest)

    def length_for(self, state: _PatchState) -> int:
        return len(state.places) + self.steps

    def prepare(self, state: _PatchState, step: int, due: bool) -> object:
        return state.searching

    def ask(self, state: _PatchState, step: int) -> Tensor:
        if not state.searching:
            return state.points
        state.tried = state.place.new_tensor([state.places[step]]).expand_as(state.place)
        return torch.where(squares(state.tried, state.side, state.images), _GREY, state.images)

    def question(self, state: _PatchState, everyone: bool) -> Callable[[Tensor, AttackObjective], Any]:
        return state.model.loss if state.searching else super().question(state, everyone)

    def tell(self, state: _PatchState, seen: Any, step: int) -> None:
        if state.searching:
            better = seen.loss > state.best
            state.place = torch.where(better[:, None], state.tried, state.place)
            state.best = torch.where(better, seen.loss, state.best)
            state.searching = step + 1 < len(state.places)
            moved: Tensor | float = _GREY
        else:
            moved = (state.points + self.step_size * seen.gradient.sign()).clamp(0, 1)
        state.points = torch.where(squares(state.place, state.side, state.images), moved, state.images)


@dataclass
class _PatchState(Iterate):
    """Squares with sides of `side` pixels. `place` (N, 2) is the row and column with the largest loss so far,
    `best` (N,), and `tried` (N, 2) is the place that is tried now. While `searching`, all `places` are tried.
    """

    places: list[tuple[int, int]]
    side: int
    place: Tensor
    tried: Tensor
    best: Tensor
    searching: bool = True


@dataclass(frozen=True, kw_only=True)
class PatchNoise(Noise):
    """A square of uniform noise at a uniform place; gamma is the share of the image that it covers."""

    name: ClassVar[str] = "patch"
    axis: ClassVar[str] = "share of the image's area"
    radii: ClassVar[str] = "0.02,0.05,0.1"

    @property
    def definition(self) -> str:
        return "a square of area gamma at a uniform place, u~U(0,1) on each pixel and channel"

    def width(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape) + 2

    def unit(self, draws: Draws, shape: tuple[int, ...], draw: int) -> Tensor:
        return signed_uniform(draws, (self.width(shape),), draw)

    def shaped(self, normals: Tensor, shape: tuple[int, ...]) -> Tensor:
        return normals.double().div(math.sqrt(2)).erf()

    def apply(self, images: Tensor, unit: Tensor, gamma: float) -> Tensor:
        images = images.float().expand(len(unit), *images.shape[1:])
        shares = (unit.float() + 1) / 2
        side = Patch(area=gamma).side(images)
        rooms = shares.new_tensor([images.shape[2] - side + 1, images.shape[3] - side + 1])
        corners = torch.minimum((shares[:, -2:] * rooms).floor(), rooms - 1).long()
        return torch.where(squares(corners, side, images), shares[:, :-2].view_as(images), images)
