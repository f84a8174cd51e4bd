"""Shot noise: Poisson noise, as from a finite number of photons."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from rbtools.corruptions.base import Corruption, by_archive
from rbtools.lazy import Tensor, torch
from rbtools.rng.draws import Draws

WORD = 32  # bits of a random word
BINS = 10  # number of leading bits that choose the start of the search


@dataclass(frozen=True, kw_only=True)
class ShotNoise(Corruption):
    """The result is Poisson(x * c) / c, independently for every pixel and channel. A smaller c is more
    severe.

    A count is computed from 32 random bits by inverting the distribution function. Every probability is
    therefore exact up to 2^-32.
    """

    name = "shot_noise"
    random = True
    severities = by_archive(cifar=(500, 250, 100, 75, 50), imagenet=(60, 25, 12, 5, 3))

    def corrupt_levels(self, levels: Tensor, constant: int, draws: Draws) -> Tensor:
        bits = draws.bits(levels[0].numel()).view_as(levels)
        return poisson(levels.long(), constant, bits).double().div_(constant).mul_(255)


def poisson(levels: Tensor, constant: int, bits: Tensor) -> Tensor:
    """Poisson counts (int32) with mean level * constant / 255, from int64 random `bits` in [0, 2^32)."""
    ends, starts, bounds, width = _tables(constant, str(levels.device))
    bins, drawn = (levels << BINS).add_(bits >> (WORD - BINS)).flatten(), bits.flatten()
    counts = starts.index_select(0, bins)
    # Nearly all counts are decided: only bins in a tail contain the ends of more than two counts.
    undecided = (bounds.index_select(0, bins) <= drawn).nonzero().flatten()
    first = levels.flatten()[undecided] * width
    while len(undecided):
        counts[undecided] += 1
        more = ends[first + counts[undecided]] <= drawn[undecided]
        undecided, first = undecided[more], first[more]
    return counts.view_as(levels)


@functools.lru_cache(maxsize=16)
def _tables(constant: int, device: str) -> tuple[Tensor, Tensor, Tensor, int]:
    """For each grey level, upper ends of the counts' intervals in [0, 2^32), int64 (256 * K,) for K distinct
    counts; and for each bin its first count, int32, and the upper end of that count's interval, int64, both
    (256 * 2^BINS,)."""
    most = math.ceil(constant + 8 * math.sqrt(constant)) + 30  # P(above) < 2^-33 for every mean
    means = torch.arange(256, dtype=torch.float64)[:, None] * constant / 255
    counts = torch.arange(most, dtype=torch.float64)[None, :]
    below = torch.special.gammaincc(counts + 1, means)
    below[0] = 1  # mean 0: the count is 0
    ends = (below * 2.0**WORD).round_().long()
    ends[:, -1] = 1 << WORD
    bins = (torch.arange(1 << BINS) << (WORD - BINS)).expand(256, -1).contiguous()
    starts = torch.searchsorted(ends, bins, right=True)
    bounds = ends.gather(1, starts)
    return ends.flatten().to(device), starts.int().flatten().to(device), bounds.flatten().to(device), most
