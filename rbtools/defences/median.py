"""The median of each neighbourhood."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.defences.base import Defence
from rbtools.lazy import Tensor, torch
from rbtools.registry import param


@dataclass(frozen=True, kw_only=True)
class Median(Defence):
    """Each pixel replaced by the median of a window, channel by channel (Xu et al., Feature squeezing, NDSS
    2018). Beyond the border the image is mirrored, with its edge twice; of an even number of pixels the
    larger middle one is taken.
    """

    name = "median"

    size: int = param(3, "Side of the window, in pixels.", check="count")

    def __call__(self, images: Tensor) -> Tensor:
        rows, columns = (self._mirrored(side, images.device) for side in images.shape[-2:])
        windows = images[..., rows, :][..., columns].unfold(2, self.size, 1).unfold(3, self.size, 1)
        return windows.flatten(-2).kthvalue(self.size**2 // 2 + 1, dim=-1).values

    def _mirrored(self, side: int, device: torch.device) -> Tensor:
        """The rows of an image of that height in which the windows' pixels are."""
        first = -(self.size // 2)
        position = torch.arange(first, first + side + self.size - 1, device=device) % (2 * side)
        return torch.minimum(position, 2 * side - 1 - position)
