"""Quantisation, which reduces the number of grey levels."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.defences.base import Defence
from rbtools.lazy import Tensor
from rbtools.registry import param


@dataclass(frozen=True, kw_only=True)
class Quantize(Defence):
    """Pixels are rounded to 2^bits grey levels (Xu et al., Feature squeezing, NDSS 2018).

    The gradient of the rounding itself is zero almost everywhere.
    """

    name = "quantize"
    backward = "identity"

    bits: int = param(4, "Number of bits per pixel and channel.", check="count")

    def __call__(self, images: Tensor) -> Tensor:
        most = 2**self.bits - 1
        return images.mul(most).round().div(most)
