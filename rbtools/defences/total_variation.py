"""Total variation minimisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rbtools.defences.base import IteratedDefence
from rbtools.lazy import F, Tensor, torch
from rbtools.registry import param

_SMOOTH = 0.03  # gradients of the image below this count as slopes, above it as edges


@dataclass(frozen=True, kw_only=True)
class TotalVariation(IteratedDefence):
    """Pixels are dropped at random, and the image of small total variation near the others takes their place
    (Guo et al., Countering adversarial images using input transformations, ICLR 2018).

    The objective is half the squared distance to the kept pixels, plus `weight` times the sum of the lengths
    of the image's gradients, smoothed near zero. Each step is one of projected gradient descent, and short
    enough that no step raises it. `drop=0` is not random.
    """

    name = "tv"

    weight: float = param(0.03, "Weight of the total variation.", check="non-negative")
    drop: float = param(0.5, "Share of the pixels that are dropped.", check="below one")
    steps: int = param(50, "Gradient steps.", check="count")

    def begin(self, images: Tensor) -> Sequence[Tensor]:
        kept = torch.rand(len(images), 1, *images.shape[2:], device=images.device) >= self.drop
        mask = kept.to(images.dtype)
        sums, counts = (F.avg_pool2d(one, 3, 1, 1, count_include_pad=False) for one in (images * mask, mask))
        around = torch.where(counts > 0, sums / counts.clamp_min(1e-6), 0.5)
        return torch.where(kept, images, around), images, mask

    def step(self, images: Tensor, number: int, *more: Tensor) -> Tensor:
        given, mask = more
        across = F.pad(images.diff(dim=3), (0, 1))
        along = F.pad(images.diff(dim=2), (0, 0, 0, 1))
        length = (across.square() + along.square() + _SMOOTH**2).sqrt()
        across, along = across / length, along / length
        divergence = (
            across - F.pad(across, (1, 0))[..., :-1] + along - F.pad(along, (0, 0, 1, 0))[..., :-1, :]
        )
        size = 1 / (1 + 8 * self.weight / _SMOOTH)  # the inverse of the largest curvature
        return (images - size * (mask * (images - given) - self.weight * divergence)).clamp(0, 1)
