"""Changes of a few pixels: Sparse-RS and sigma-zero."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.attacks import losses
from rbtools.attacks.active_examples import wide
from rbtools.attacks.drive import Iterate, SteppedAttack
from rbtools.lazy import torch
from rbtools.registry import param
from rbtools.threats.base import Threat

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

    from rbtools.attacks.active_examples import AttackBatch
    from rbtools.attacks.oracle import Losses
    from rbtools.rng.draws import Draws

# From each number of queries (out of 10,000) on, the share of moving pixels is divided by the second number.
_DIVIDED = ((1, 2), (51, 4), (201, 5), (501, 6), (1001, 8), (2001, 10), (4001, 12), (6001, 15), (8001, 20))


@dataclass(frozen=True, kw_only=True)
class Pixels(Threat):
    """At most `pixels` pixels with any values (L0); all channels of a pixel count as one. A point is an
    image."""

    name: ClassVar[str] = "pixels"
    strength: ClassVar[str] = "pixels"

    pixels: int = 10

    @classmethod
    def axis(cls, word: str) -> str:
        return "changed pixels"

    def distances(self, points: Tensor, images: Tensor) -> Tensor:
        return (points != images).any(1).flatten(1).sum(1).to(points)

    def project(self, points: Tensor, images: Tensor) -> Tensor:
        """Keep the pixels that differ most from their images."""
        changes = (points - images).square().sum(1).flatten(1)
        kept = changes.topk(min(self.pixels, changes.shape[1]), dim=1).indices
        mask = torch.zeros_like(changes, dtype=torch.bool).scatter(1, kept, True)
        return torch.where(mask.view(-1, 1, *images.shape[2:]), points.clamp(0, 1), images)

    def contains(self, points: Tensor, images: Tensor) -> Tensor:
        values = points.flatten(1)
        return (self.distances(points, images) <= self.pixels) & values.amin(1).ge(0) & values.amax(1).le(1)


@dataclass(frozen=True, kw_only=True)
class SparseRS(SteppedAttack):
    """Sparse-RS (Croce et al. 2022, arXiv:2006.12834), a random search that changes at most `pixels` pixels.

    The attack uses only the logits of the model. The colours of changed pixels are random corners of the
    colour cube. In each query, some of the pixels move to other places and get new colours, and the change is
    kept if the margin decreases. The share of pixels that move is `alpha`, later divided by 2 to 20; the
    schedule is scaled to the number of queries. An example is dropped as soon as an image fools the model.
    The accuracy is an upper bound for the threat.

    Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,).
    """

    name: ClassVar[str] = "pixels"
    version: ClassVar[int] = 1
    words: ClassVar[str] = "Sparse-RS"
    loss: ClassVar[str] = "margin"
    within: ClassVar[type[Threat]] = Pixels
    uses_gradients: ClassVar[bool] = False
    clean_pass: ClassVar[bool] = True

    pixels: int = param(10, "Largest number of changed pixels.", bounds="[0, inf)")
    queries: int = param(10000, "Number of queries of the model.", check="positive")
    alpha: float = param(0.3, "Initial share of the changed pixels that move in a step.", check="fraction")
    restarts: int = param(1, "Number of runs from new random starts.", check="positive")

    @property
    def most_passes(self) -> int:
        return self.restarts * self.queries

    @property
    def length(self) -> int:
        return self.queries

    def shortened(self, steps: int) -> Self:
        return replace(self, queries=steps)

    def said(self) -> dict[str, Any]:
        return {**super().said(), "bound": "upper"}

    def moved(self, query: int, pixels: int) -> int:
        """The number of pixels that move in this query. Queries are counted from 0, the start."""
        query = int(query / self.queries * 10000)
        divisor = next((by for first, by in reversed(_DIVIDED) if query >= first), 1)
        return max(int(self.alpha / divisor * pixels), 1)

    def begin(self, batch: AttackBatch, restart: int) -> _SparseState:
        images = batch.images
        size = images[0, 0].numel()
        pixels, draws = min(self.pixels, size), batch.draws.child(f"restart{restart}")
        keys = draws.child("places").uniform((size,)).to(images.device)
        lowest = torch.full_like(images.flatten(1)[:, 0], -torch.inf)
        goal = batch.goal(losses.margin)
        return _SparseState(images, images, goal, draws, pixels, keys.argsort(1), lowest)

    def ask(self, state: _SparseState, step: int) -> Tensor:
        return state.start() if step == 0 else state.tried(step, self.moved(step, state.pixels))

    def tell(self, state: _SparseState, seen: Losses, step: int) -> None:
        better = seen.loss > state.best
        state.best = torch.where(better, seen.loss, state.best)
        state.points = torch.where(wide(better, state.points), seen.points, state.points)
        state.order = torch.where(better[:, None], state.swapped, state.order)


@dataclass
class _SparseState(Iterate):
    """`points` are the best images so far, with their margins `best` (N,). `order` (N, H W) are all pixels of
    each image, with the `pixels` changed ones first; `swapped` is the order in the current query."""

    draws: Draws
    pixels: int
    order: Tensor
    best: Tensor
    swapped: Tensor = field(init=False)

    def start(self) -> Tensor:
        self.swapped = self.order
        words = self.draws.child("colours").bits(self.pixels).to(self.order.device)
        return self._with_colours(self.images, self.order[:, : self.pixels], words)

    def tried(self, query: int, moved: int) -> Tensor:
        """The best images after `moved` of the changed pixels have moved to other places."""
        count, size = self.pixels, self.order.shape[1]
        moved = min(moved, size - count)
        if moved == 0:  # all pixels are changed: one of them gets a new colour
            words = self.draws.bits(2, draw=query).to(self.order.device)
            at = self.order.gather(1, (words[:, :1] * count) >> 32)
            return self._with_colours(self.points, at, words[:, 1:])
        words = self.draws.bits(3 * moved, draw=query).to(self.order.device).split(moved, 1)
        out, into = subset(words[0], count), count + subset(words[1], size - count)
        left, entered = self.order.gather(1, out), self.order.gather(1, into)
        self.swapped = self.order.scatter(1, out, entered).scatter(1, into, left)
        restored = self.images.flatten(2).gather(2, left[:, None].expand(-1, self.images.shape[1], -1))
        points = self.points.flatten(2).scatter(2, left[:, None].expand_as(restored), restored)
        return self._with_colours(points.view_as(self.images), entered, words[2])

    def _with_colours(self, points: Tensor, places: Tensor, words: Tensor) -> Tensor:
        """The points with random corners of the colour cube at the places (N, M). A single place gets a
        different colour."""
        channels, flat = points.shape[1], points.flatten(2)
        at = places[:, None].expand(-1, channels, -1)
        bits = torch.arange(channels, device=places.device)
        if places.shape[1] == 1:
            old = flat.gather(2, at)[..., 0]
            corner = ((old == 0) | (old == 1)).all(1, keepdim=True)
            code = ((old == 1).long() << bits).sum(1, keepdim=True)
            number = (words * ((1 << channels) - corner.long())) >> 32
            words = number + (corner & (number >= code))
        colours = ((words[:, None] >> bits[:, None]) & 1).to(points)
        return flat.scatter(2, at, colours).view_as(points)


def subset(words: Tensor, size: int) -> Tensor:
    """M different numbers below `size` in each row (N, M), from random words (N, M) in [0, 2^32), by Floyd's
    algorithm. All subsets are equally likely."""
    chosen: list[Tensor] = []
    for place in range(words.shape[1]):
        last = size - words.shape[1] + place
        number = (words[:, place] * (last + 1)) >> 32
        taken = torch.stack([number == one for one in chosen]).any(0) if chosen else None
        chosen.append(number if taken is None else torch.where(taken, last, number))
    return torch.stack(chosen, 1)


@dataclass(frozen=True, kw_only=True)
class SigmaZero(SteppedAttack):
    """Sigma-zero (Cina et al. 2025, arXiv:2402.01879), which searches for the fewest changed pixels.

    Adam follows the gradient of the clipped margin and of a smooth count of the changed pixels, the mean of
    |d|^2 / (|d|^2 + sigma) over the pixels d, in steps of 1 to 0.1. After each step, pixels that changed by
    less than a threshold are restored; the threshold rises while the image fools the model, and falls
    otherwise. For images with one channel, this is the authors' method; with more channels, it counts pixels,
    whereas the authors count each channel. The accuracy is an upper bound for the threat.

    Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,).
    """

    name: ClassVar[str] = "sigma-zero"
    version: ClassVar[int] = 1
    words: ClassVar[str] = "σ-zero"
    loss: ClassVar[str] = "margin"
    within: ClassVar[type[Threat]] = Pixels
    minimal: ClassVar[bool] = True
    random: ClassVar[bool] = False
    precise: ClassVar[bool] = True
    unbroken = "best_points"

    pixels: int = param(10, "Largest number of changed pixels.", bounds="[0, inf)")
    steps: int = param(1000, "Number of gradient steps.", check="positive")
    sigma: float = param(0.001, "Smoothing of the count of changed pixels.", check="positive")
    threshold: float = param(0.3, "Initial change below which pixels are restored.", check="fraction")

    @property
    def any_counts(self) -> bool:
        return False

    def said(self) -> dict[str, Any]:
        return {**super().said(), "bound": "upper"}

    def begin(self, batch: AttackBatch, restart: int) -> _SigmaState:
        images, goal = batch.images, batch.goal(functools.partial(losses.margin, kappa=0.0))
        zeros, first = torch.zeros_like(images), torch.full_like(images[:, 0, 0, 0], self.threshold)
        most = torch.full_like(first, torch.inf)
        return _SigmaState(images, images, goal, zeros, zeros.clone(), first, images.clone(), most)

    def tell(self, state: _SigmaState, seen: Any, step: int) -> None:
        broken, delta = ~seen.still_correct, state.points - state.images
        count = self.threat.distances(state.points, state.images)
        better = broken & (count < state.best) & (count <= self.pixels)
        state.best = torch.where(better, count, state.best)
        state.best_points = torch.where(wide(better, state.points), state.points, state.best_points)

        square = delta.square().sum(1, keepdim=True)
        smooth = 2 * self.sigma * delta / (square + self.sigma).square() / square[0].numel()
        gradient = smooth - seen.gradient
        gradient = gradient / gradient.flatten(1).abs().amax(1).clamp_min(1e-12).view(-1, 1, 1, 1)
        state.mean = state.mean.lerp(gradient, 0.1)
        state.spread = state.spread.mul(0.999).addcmul(gradient, gradient, value=0.001)
        scale = state.spread.sqrt() / math.sqrt(1 - 0.999 ** (step + 1)) + 1e-8
        rate = _rate(step - 1, self.steps) if step else 1.0
        points = (state.points - rate / (1 - 0.9 ** (step + 1)) * state.mean / scale).clamp(0, 1)
        rate = 0.01 * _rate(step, self.steps)
        state.threshold = (state.threshold + torch.where(broken, rate, -rate)).clamp(0, 1)
        small = (points - state.images).abs().amax(1, keepdim=True) < state.threshold.view(-1, 1, 1, 1)
        state.points = torch.where(small, state.images, points)


def _rate(step: int, steps: int) -> float:
    return 0.1 + 0.45 * (1 + math.cos(math.pi * step / steps))


@dataclass
class _SigmaState(Iterate):
    """`mean` and `spread` (N, C, H, W) are Adam's moments, and `threshold` is (N,). `best_points` have the
    fewest changed pixels so far, `best` (N,); they are the images if no point fooled the model."""

    mean: Tensor
    spread: Tensor
    threshold: Tensor
    best_points: Tensor
    best: Tensor
