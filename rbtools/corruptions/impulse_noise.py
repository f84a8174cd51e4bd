"""Impulse noise: some values become 0 or 1, as after bit errors."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.corruptions.base import Corruption, by_archive
from rbtools.lazy import Tensor
from rbtools.rng.draws import Draws


@dataclass(frozen=True, kw_only=True)
class ImpulseNoise(Corruption):
    """Each value (pixel and channel) is replaced with probability c by 0 or 1, which are equally likely."""

    name = "impulse_noise"
    random = True
    severities = by_archive(cifar=(0.01, 0.02, 0.03, 0.05, 0.07), imagenet=(0.03, 0.06, 0.09, 0.17, 0.27))

    def corrupt_levels(self, levels: Tensor, constant: float, draws: Draws) -> Tensor:
        chance = draws.uniform(tuple(levels.shape[1:]))
        # In float32, 0 and 1 of a comparison are several times as fast as masks.
        kept = chance.clone().ge_(constant / 2)
        return levels.maximum(chance.lt_(constant).mul_(255)).mul_(kept)
