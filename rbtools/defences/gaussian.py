"""Gaussian noise."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.defences.base import Defence
from rbtools.lazy import Tensor, torch
from rbtools.registry import param


@dataclass(frozen=True, kw_only=True)
class AddGaussian(Defence):
    """Gaussian noise on every pixel, clipped to [0, 1]."""

    name = "gaussian"

    sigma: float = param(0.1, "Standard deviation of the noise, on [0, 1].", check="non-negative")

    def __call__(self, images: Tensor) -> Tensor:
        noise = torch.randn(images.shape, dtype=images.dtype, device=images.device)
        return (images + self.sigma * noise).clamp(0, 1)
