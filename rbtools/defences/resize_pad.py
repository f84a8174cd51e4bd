"""Random resizing and padding."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.defences.base import Defence, picked
from rbtools.lazy import Tensor, torch
from rbtools.registry import param


@dataclass(frozen=True, kw_only=True)
class ResizePad(Defence):
    """Random resizing and padding (Xie et al., Mitigating adversarial effects through randomization, ICLR
    2018): images of 299 pixels are resized to a random side in [299, 331) by the nearest pixel, and padded
    with zeros to 331 pixels at a random place. That is `scale=1.107`. Below 1 the result keeps the size of
    the images, for networks that take no other: the side is random in [scale, 1) of it.
    """

    name = "resize-pad"

    scale: float = param(
        0.903, "The largest side over that of the images; below 1 the least.", check="positive"
    )

    def __call__(self, images: Tensor) -> Tensor:
        size, top, left = torch.rand(len(images), 3, device=images.device).unbind(1)
        rows, row_inside = self._lines(images.shape[-2], size, top)
        columns, column_inside = self._lines(images.shape[-1], size, left)
        inside = row_inside[:, None, :, None] & column_inside[:, None, None, :]
        return picked(images, rows, columns) * inside

    def _lines(self, side: int, size: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        """For each line of the results (N, h) the line of the image in it, and whether there is one.

        size, place: (N,), uniform random numbers in [0, 1).
        """
        small, large = sorted((side, max(round(self.scale * side), 1)))
        resized = small + (size * (large - small)).long()
        start = (place * (large - resized + 1)).long()
        line = torch.arange(large, device=size.device) - start[:, None]
        source = (line * side).div(resized[:, None], rounding_mode="floor")
        return source.clamp(0, side - 1), (line >= 0) & (line < resized[:, None])
