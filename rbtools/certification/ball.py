"""The images around an image, and bounds of linear functions over them."""

from __future__ import annotations

import torch
from torch import Tensor

from rbtools.certification import rounding
from rbtools.certification.operations import ValueBounds


class Ball:
    """All images in [0, 1] within eps of images (N, C, H, W), in the norm "linf" or "l2".

    outward: also those that rounding to float32 may count as such. dtype: the type of the bounds.
    """

    def __init__(
        self,
        images: Tensor,
        eps: float,
        norm: str,
        *,
        outward: bool = True,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.images, self.norm, self.outward = images.to(dtype), norm, outward
        slack = rounding.OF_PIXEL if outward else 0.0
        self.eps = eps * (1 + rounding.OF_DISTANCE) + slack if outward and norm == "l2" else eps
        reach = self.eps + slack
        self.box = ValueBounds((self.images - reach).clamp_min(0), (self.images + reach).clamp_max(1))

    def __len__(self) -> int:
        return len(self.images)

    def one(self, number: int) -> Ball:
        """The ball of one image."""
        part = slice(number, number + 1)
        alone = object.__new__(Ball)
        alone.images, alone.norm, alone.outward = self.images[part], self.norm, self.outward
        alone.eps = self.eps
        alone.box = ValueBounds(self.box.lower[part], self.box.upper[part])
        return alone

    def least(self, coefficients: Tensor) -> Tensor:
        """Lower bounds (N, R) of linear functions, from coefficients (N, R, C, H, W).

        In L-infinity it is their minimum over the ball; in L2 the larger of the minima over the ball without
        the limits of pixels, and over the box around it.
        """
        rows = coefficients.flatten(2).to(self.images.dtype)
        centre = ((self.box.lower + self.box.upper) / 2).flatten(1)
        radius = ((self.box.upper - self.box.lower) / 2).flatten(1)
        absolute = rows.abs()
        least = products(rows, centre) - products(absolute, radius)
        if self.norm == "l2":
            moved = self.eps * torch.linalg.vector_norm(rows, dim=2)
            least = torch.maximum(least, products(rows, self.images.flatten(1)) - moved)
        if self.outward:
            least = least - absolute.sum(2) * (2 * rows.shape[2] + 8) * torch.finfo(torch.float64).eps
        return least


def products(rows: Tensor, values: Tensor) -> Tensor:
    """Sums (N, R) of rows (N, R, n) times values (N, n)."""
    return torch.einsum("nrk,nk->nr", rows, values)
