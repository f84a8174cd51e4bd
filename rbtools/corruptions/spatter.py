"""Spatter: rain or mud on the lens."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rbtools.corruptions import imaging
from rbtools.corruptions.base import Corruption, by_archive
from rbtools.lazy import F, Tensor, torch
from rbtools.rng.draws import Draws

Constant = tuple[float, float, float, float, float, int]
WATER = (175, 238, 238)  # pale turquoise
MUD = (63, 42, 20)
FARTHEST = 20  # pixels; larger distances from an edge are set to this
# Lengths of the steps of the distance transform: straight, diagonal, and a knight's move.
STEPS = {1.0: ((0, 1), (1, 0)), 1.4: ((1, 1),), 2.1969: ((1, 2), (2, 1))}
LOW, HIGH = 50, 150  # the lower and the upper threshold of edges


@dataclass(frozen=True, kw_only=True)
class Spatter(Corruption):
    """Adds drops of water or mud. Water drops are shaded from their edges inward. This is one of the four
    extra corruptions in the benchmark.

    The constants are the mean and standard deviation of the noise that creates the drops, the blur of the
    noise, the level above which there is a drop, the strength of the water or the blur of the mud, and 1 for
    mud.
    """

    name = "spatter"
    random = True
    severities = by_archive(
        cifar=(
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
        imagenet=(
            (0.65, 0.3, 4, 0.69, 0.6, 0),
            (0.65, 0.3, 3, 0.68, 0.6, 0),
            (0.65, 0.3, 2, 0.68, 0.5, 0),
            (0.65, 0.3, 1, 0.65, 1.5, 1),
            (0.67, 0.4, 1, 0.65, 1.5, 1),
        ),
    )

    def smallest(self, constant: Constant) -> int:
        return 3  # for filters of 3x3 pixels and their mirrored borders

    def corrupt_levels(self, levels: Tensor, constant: Constant, draws: Draws) -> Tensor:
        mean, deviation, sigma, least, strength, is_mud = constant
        noise = draws.normal((1, *levels.shape[2:])).double().mul_(deviation).add_(mean)
        liquid = imaging.gaussian_blur(noise, sigma)
        if is_mud:
            cover = imaging.gaussian_blur((liquid > least).double(), strength)
            cover = cover.masked_fill(cover < 0.8, 0)
            return levels.double().mul_(1 - cover).add_(cover * colour(MUD, levels))
        drops = liquid.masked_fill(liquid < least, 0).mul_(255).floor_().clamp_(0, 255)
        light = drops * shade(drops)
        brightest = light.amax(dim=(2, 3), keepdim=True)
        light = (light / brightest.where(brightest > 0, 1)).mul_(strength)
        return levels.double().add_(light * colour(WATER, levels))


def colour(values: tuple[int, ...], like: Tensor) -> Tensor:
    """The grey levels (1, C, 1, 1) of a colour, or its brightness for images without three channels."""
    levels = torch.tensor(values, dtype=torch.float64, device=like.device).view(1, 3, 1, 1)
    return levels if like.shape[1] == 3 else imaging.grey(levels)


def shade(drops: Tensor) -> Tensor:
    """The brightness of the water as a function of the distance from edges: float64 (N, 1, H, W)."""
    far = distances(edges(drops))
    depth = equalised(_box(far).floor_())
    ramp = ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))  # light from the upper left
    return _box(_filtered(depth, ramp).clamp_(0, 255)).round_()


def edges(levels: Tensor) -> Tensor:
    """The edges in grey levels, bool (N, 1, H, W), by Canny's method with the gradient |dx| + |dy|."""
    padded = F.pad(levels, (1, 1, 1, 1), mode="replicate")
    across = _filtered(padded, ((-1, 0, 1), (-2, 0, 2), (-1, 0, 1)), None)
    down = _filtered(padded, ((-1, -2, -1), (0, 0, 0), (1, 2, 1)), None)
    size = across.abs() + down.abs()
    around = F.pad(size, (1, 1, 1, 1))
    height, width = size.shape[2:]

    def beside(rows: int, columns: int) -> Tensor:
        return around[:, :, 1 + rows : 1 + rows + height, 1 + columns : 1 + columns + width]

    flat = down.abs() < math.tan(math.pi / 8) * across.abs()
    steep = down.abs() > math.tan(3 * math.pi / 8) * across.abs()
    along = (across * down) < 0  # the gradient points to the upper right, or the lower left
    crest = torch.where(
        flat,
        (size > beside(0, -1)) & (size >= beside(0, 1)),
        torch.where(
            steep,
            (size > beside(-1, 0)) & (size >= beside(1, 0)),
            torch.where(
                along,
                (size > beside(-1, 1)) & (size > beside(1, -1)),
                (size > beside(-1, -1)) & (size > beside(1, 1)),
            ),
        ),
    )
    possible = crest & (size > LOW)
    marked = possible & (size > HIGH)
    while True:  # extend strong edges along possible ones (hysteresis)
        grown = F.max_pool2d(marked.float(), 3, 1, 1).bool() & possible
        if torch.equal(grown, marked):
            return marked
        marked = grown


def distances(marked: Tensor) -> Tensor:
    """The distance of each pixel from the nearest marked pixel, float64 (N, 1, H, W), at most FARTHEST, by
    Borgefors' 5x5 distance, relaxed until nothing changes."""
    far = torch.full(marked.shape, float(FARTHEST), dtype=torch.float64, device=marked.device)
    far = far.masked_fill(marked, 0)
    height, width = far.shape[2:]
    while True:
        around = F.pad(far, (2, 2, 2, 2), value=float(FARTHEST))
        nearer = far
        for length, ways in STEPS.items():
            for rows, columns in ((r * i, c * j) for r, c in ways for i in (-1, 1) for j in (-1, 1)):
                there = around[:, :, 2 + rows : 2 + rows + height, 2 + columns : 2 + columns + width]
                nearer = torch.minimum(nearer, there + length)
        if torch.equal(nearer, far):
            return far
        far = nearer


def equalised(levels: Tensor) -> Tensor:
    """Grey levels (N, 1, H, W), equalised over 0 to 255 by their ranks. A constant image is unchanged."""
    flat = levels.flatten(1).long()
    count = flat.shape[1]
    histogram = torch.zeros(len(flat), 256, dtype=torch.int64, device=flat.device)
    histogram.scatter_add_(1, flat, torch.ones_like(flat))
    lowest = histogram.gather(1, flat.amin(dim=1, keepdim=True))
    scale = 255 / (count - lowest).clamp(min=1).double()
    ranks = ((histogram.cumsum(1) - lowest) * scale).round_().clamp_(0, 255)
    spread = ranks.gather(1, flat)
    return spread.where(lowest < count, flat.double()).view_as(levels)


def _box(planes: Tensor) -> Tensor:
    return _filtered(planes, ((1, 1, 1),) * 3).div_(9)


def _filtered(planes: Tensor, kernel: imaging.Kernel, mode: str | None = "reflect") -> Tensor:
    """Correlate float64 planes with a 3x3 kernel. Without `mode`, the result has no border pixels."""
    padded = planes if mode is None else F.pad(planes, (1, 1, 1, 1), mode=mode)
    return imaging.by_taps(padded, kernel)
