"""Threats that are families of transformations with a few parameters, such as an angle and a shift."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from rbtools.lazy import F, torch
from rbtools.threats.base import Threat

if TYPE_CHECKING:
    from torch import Tensor

_ROUNDING = 1e-6  # the share by which float32 may round a number up


class Family(Threat):
    """Base class of threats whose points are vectors of P numbers, where 0 changes nothing.

    `bounds` names, for each number, the field that bounds its absolute value; if `one_sided` is true, numbers
    are not negative. A subclass only has to define `transformed`, also for attacks (`attacks.family_search`)
    and noise (`probabilistic.family_noise`).
    """

    bounds: ClassVar[tuple[str, ...]]
    one_sided: ClassVar[bool] = False

    @property
    def most(self) -> tuple[float, ...]:
        """The largest value of each number."""
        return tuple(float(getattr(self, name)) for name in self.bounds)

    @property
    def least(self) -> tuple[float, ...]:
        """The smallest value of each number."""
        return tuple(0.0 if self.one_sided else -one for one in self.most)

    @property
    def empty(self) -> bool:
        return not any(self.most)

    def transformed(self, points: Tensor, images: Tensor) -> Tensor:
        """The images (N, C, H, W) after the transformations by the points; values outside [0, 1] are clipped.

        Shape: points are float32 (N, P), or (1, P) for the same transformation of all images.
        """
        raise NotImplementedError

    def images(self, points: Tensor, images: Tensor) -> Tensor:
        if len(points) > 1 and points.stride(0) == 0:
            points = points[:1]
        made = self.transformed(points, images).clamp(0, 1)
        return torch.where((points == 0).all(1).view(-1, 1, 1, 1), images, made)

    def unchanged(self, images: Tensor) -> Tensor:
        return images.new_zeros(len(images), len(self.bounds))

    def distances(self, points: Tensor, images: Tensor) -> Tensor:
        bounded = [place for place, name in enumerate(self.bounds) if name == self.strength]
        farthest: Tensor = points[:, bounded].abs().amax(1)
        return farthest

    def at(self, shares: Tensor) -> Tensor:
        """The points at these shares (..., P) of the way from the smallest values to the largest."""
        return self._of_each(shares, lambda share, least, most: least + share * (most - least))

    def project(self, points: Tensor, images: Tensor) -> Tensor:
        return self._of_each(points, torch.clamp)

    def contains(self, points: Tensor, images: Tensor) -> Tensor:
        def inside(number: Tensor, least: float, most: float) -> Tensor:
            slack = _ROUNDING * most
            return (number >= least - slack) & (number <= most + slack)

        return self._of_each(points, inside).all(1)

    def _of_each(self, points: Tensor, function: Callable[[Tensor, float, float], Tensor]) -> Tensor:
        """Apply a function to each number and its bounds. (A tensor of the bounds would make a GPU wait.)"""
        columns = zip(points.unbind(-1), self.least, self.most, strict=True)
        return torch.stack([function(*column) for column in columns], -1)

    def grid_size(self, counts: Sequence[int]) -> int:
        """The number of points in a grid."""
        return math.prod(count for most, count in zip(self.most, counts, strict=True) if most)

    def grid(self, counts: Sequence[int]) -> Tensor:
        """All combinations (G, P) of evenly spaced values of each number, starting with the smallest
        strength. With an odd count, or if numbers are not negative, the values contain 0."""
        axes = [
            torch.linspace(least, most, count, dtype=torch.float64).tolist() if most and count > 1 else [0.0]
            for least, most, count in zip(self.least, self.most, counts, strict=True)
        ]
        points = torch.tensor([*itertools.product(*axes)], dtype=torch.float32)
        shares = points.abs() / torch.tensor([most or 1.0 for most in self.most])
        keys = zip(self.distances(points, points).tolist(), shares.sum(1).tolist(), strict=True)
        ranked = sorted(enumerate(keys), key=lambda pair: pair[1])
        return points[[row for row, _ in ranked]]


def warped(images: Tensor, matrix: Tensor) -> Tensor:
    """Move the pixels of images with bilinear interpolation; areas outside the original image become black.

    `matrix` (N, 2, 3), or (1, 2, 3) for all images, maps each position (x, y, 1) in the new image to its
    position in the old image. Positions are in pixels to the right of and below the centre.
    """
    shape, (height, width) = images.shape, images.shape[2:]
    a, b, right, c, d, down = matrix.flatten(1).unbind(1)
    rows = [a, b * (height / width), right * (2 / width), c * (width / height), d, down * (2 / height)]
    matrix = torch.stack(rows, 1).view(-1, 2, 3)
    if len(matrix) == 1:  # the weights of the interpolation are computed once for all images
        images = images.flatten(0, 1)[None]
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False).view(shape)
