"""Elastic transform: regions of the image are stretched or contracted."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.corruptions import imaging
from rbtools.corruptions.base import Corruption, by_archive
from rbtools.lazy import Tensor, torch
from rbtools.rng.draws import Draws

Constant = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class ElasticTransform(Corruption):
    """A random affine map and a smooth random displacement. The constants are (strength, sigma, affine).

    The constants of CIFAR-10-C are fractions of the image's side (32 pixels), and the constants of ImageNet-C
    are fractions of 244/224 of the side. The affine map moves three points by up to `affine`. The
    displacement is `strength` times uniform noise that is blurred by `sigma`. With the constants of
    CIFAR-10-C, higher severities change the images less, and severity 1 has no elastic displacement, as in
    the published archive.
    """

    name = "elastic_transform"
    random = True
    severities = by_archive(
        cifar=((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
        imagenet=tuple(
            (strength * 244 / 224, sigma * 244 / 224, affine * 244 / 224)
            for strength, sigma, affine in (
                (2, 0.7, 0.1),
                (2, 0.08, 0.2),
                (0.05, 0.01, 0.02),
                (0.07, 0.01, 0.02),
                (0.12, 0.01, 0.02),
            )
        ),
    )

    def smallest(self, constant: Constant) -> int:
        return 3  # the three points are a third of the side from the centre

    def corrupt_levels(self, levels: Tensor, constant: Constant, draws: Draws) -> Tensor:
        size = max(levels.shape[2:])
        strength, sigma, affine = (size * share for share in constant)
        down, right = affine_places(draws.child("affine"), levels.shape[2:], affine)
        moved = imaging.sampled(levels.double(), down, right, edge_twice=False)
        if not strength:
            return moved.add_(imaging.HAIR)
        noise = draws.uniform((2, *levels.shape[2:])).double().mul_(2).sub_(1)
        smooth = imaging.gaussian_blur(noise, sigma, truncate=3, mirror=True).mul_(strength)
        rows, columns = grid(levels.shape[2:], smooth)
        moved = imaging.sampled(moved, rows + smooth[:, 0], columns + smooth[:, 1], edge_twice=True)
        return moved.add_(imaging.HAIR)


def grid(size: tuple[int, ...], like: Tensor) -> tuple[Tensor, Tensor]:
    """The row numbers (H, 1) and column numbers (1, W) of all pixels."""
    height, width = size
    rows, columns = (torch.arange(side, dtype=like.dtype, device=like.device) for side in (height, width))
    return rows[:, None], columns[None, :]


def affine_places(draws: Draws, size: tuple[int, ...], reach: float) -> tuple[Tensor, Tensor]:
    """The source positions of all pixels, as rows and columns (N, H, W), under the affine map.

    Three points are at the lower right, upper right and upper left of the centre. Each coordinate of a point
    is a third of the smaller side from the centre and moves by a uniform random number of at most `reach`.
    """
    height, width = size
    distance = min(size) // 3
    x, y = width // 2, height // 2
    corners = [[x + distance, y + distance], [x + distance, y - distance], [x - distance, y - distance]]
    shifts = draws.uniform((3, 2)).double().mul_(2).sub_(1).mul_(reach)
    points = shifts + torch.tensor(corners, dtype=shifts.dtype, device=shifts.device)
    along = (points[:, 1] - points[:, 2]) / (2 * distance)  # the map of a step to the right
    under = (points[:, 0] - points[:, 1]) / (2 * distance)  # the map of a step down
    rows, columns = grid(size, shifts)
    # The inverse map: solve [along under] (u, v) = place - points[2], then go from the third corner.
    dx, dy = (columns - points[:, 2, 0, None, None]), (rows - points[:, 2, 1, None, None])
    (a, c), (b, d) = along.unbind(1), under.unbind(1)
    a, b, c, d, scale = (term[:, None, None] for term in (a, b, c, d, a * d - b * c))
    right = (d * dx - b * dy) / scale + (x - distance)
    down = (a * dy - c * dx) / scale + (y - distance)
    return down, right
