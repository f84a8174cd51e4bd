"""Glass blur: pixels are exchanged with near pixels, as behind frosted glass."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.corruptions import imaging
from rbtools.corruptions.base import Corruption, by_archive
from rbtools.lazy import Tensor, torch
from rbtools.rng.draws import Draws

Constant = tuple[float, int, int]


@dataclass(frozen=True, kw_only=True)
class GlassBlur(Corruption):
    """Blurs to grey levels, displaces pixels randomly and blurs again. The constants are (sigma, delta,
    rounds).

    In each round, from the lower right to the upper left, every pixel is exchanged with a pixel at a random
    offset from -delta to delta - 1. A known defect of the reference is kept, because the published archives
    have the same defect: the first pixel gets the value of the second pixel, but the second pixel does not
    change.
    """

    name = "glass_blur"
    random = True
    severities = by_archive(
        cifar=((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        imagenet=((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    )

    def smallest(self, constant: Constant) -> int:
        return 2 * constant[1] + 2  # otherwise no pixel is far enough from the border to move

    def corrupt_levels(self, levels: Tensor, constant: Constant, draws: Draws) -> Tensor:
        sigma, delta, rounds = constant
        blurred = imaging.gaussian_blur(levels.double(), sigma).add_(imaging.HAIR).floor_()
        flat = blurred.flatten(2)
        for number in range(rounds):
            source = sources(levels.shape[2:], delta, draws, number)
            flat = flat.gather(2, source[:, None].expand(-1, levels.shape[1], -1))
        return imaging.gaussian_blur(flat.view_as(blurred), sigma).add_(imaging.HAIR)


def sources(size: tuple[int, ...], delta: int, draws: Draws, number: int) -> Tensor:
    """The source of each pixel after a round: int64 (N, H * W), as indices in row-major order.

    If the pixel that another pixel copies is later in row-major order, it was itself overwritten earlier in
    the round. The chain of copies is followed to its end by repeated doubling.
    """
    height, width = size
    offsets = draws.integers(2 * delta, (2, height, width), draw=number) - delta
    rows = torch.arange(height, device=offsets.device)[:, None]
    columns = torch.arange(width, device=offsets.device)[None, :]
    moving = (rows > delta) & (rows <= height - delta) & (columns > delta) & (columns <= width - delta)
    position = (rows * width + columns).expand_as(offsets[:, 0])
    target = torch.where(moving, position + offsets[:, 0] * width + offsets[:, 1], position).flatten(1)
    position, moving = position.flatten(1), moving.flatten()
    if delta == 1:
        return target  # offsets -1 and 0 never reach later pixels
    count = height * width
    # Places from `count` on are the original pixels: there a chain ends.
    overwritten = (target > position) & moving[target]
    link = torch.where(overwritten, target, target + count)
    link = torch.cat([link, position + count], dim=1)
    for _ in range(max(count - 1, 1).bit_length()):
        further = link.gather(1, link)
        if torch.equal(further, link):
            break
        link = further
    return link[:, :count] - count
