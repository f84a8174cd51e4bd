"""Snow: blurred flakes are added to a whitened image."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.corruptions import imaging
from rbtools.corruptions.base import Corruption, by_archive
from rbtools.lazy import Tensor
from rbtools.rng.draws import Draws

Constant = tuple[float, float, float, float, int, float, float]


@dataclass(frozen=True, kw_only=True)
class Snow(Corruption):
    """Adds a layer of motion-blurred flakes, and the same layer rotated by 180 degrees, to a whitened image.

    The constants are the mean and standard deviation of the noise that creates the flakes, the zoom of the
    noise, the level below which there are no flakes, the radius and sigma of the motion blur (at -135 to -45
    degrees), and the weight of the image.
    """

    name = "snow"
    random = True
    severities = by_archive(
        cifar=(
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        imagenet=(
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
    )

    def corrupt_levels(self, levels: Tensor, constant: Constant, draws: Draws) -> Tensor:
        mean, deviation, zoom, least, radius, sigma, weight = constant
        noise = draws.normal((1, *levels.shape[2:])).mul_(deviation).add_(mean)
        flakes = imaging.zoomed(noise, zoom)
        flakes = flakes.masked_fill(flakes < least, 0).clamp_(0, 1).mul_(255).floor_()
        angles = draws.child("angle").uniform(()).double().mul_(90).sub_(135)
        layer = imaging.motion_blurred(flakes, radius, sigma, angles).floor_()
        pale = levels.maximum(imaging.grey(levels) * 1.5 + 127.5)
        snowed = levels.mul_(weight).add_(pale, alpha=1 - weight)
        return snowed.add_(layer).add_(layer.flip(2, 3))
