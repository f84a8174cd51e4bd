"""JPEG compression, with a smooth approximation for its gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rbtools.corruptions.jpeg_compression import compress
from rbtools.defences.base import Defence
from rbtools.lazy import F, Tensor, torch
from rbtools.registry import param

# The quantisation tables of the standard (ITU-T T.81, annex K), which libjpeg scales by the quality.
_LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
_CHROMINANCE = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)
# The matrix from red, green and blue to luminance and two colour differences (JFIF).
_COLOURS = ((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))
_SIDE = 8  # side of a block


@dataclass(frozen=True, kw_only=True)
class Jpeg(Defence):
    """Images are rounded to 8 bits and compressed as JPEG by Pillow (Guo et al., Countering adversarial
    images using input transformations, ICLR 2018, with quality 75). If an image does not have three channels,
    each channel is compressed separately.

    The gradient is computed with round(x) + (x - round(x))^3 instead of rounding (Shin and Song,
    JPEG-resistant adversarial images, 2017).
    """

    name = "jpeg"
    backward = "stand-in"

    quality: int = param(75, "Quality of the JPEG compression.", check="quality")

    def __call__(self, images: Tensor) -> Tensor:
        return compress(images.mul(255).round(), self.quality).div(255)

    def stand_in(self, images: Tensor) -> Tensor:
        levels = images * 255
        if images.shape[1] != 3:
            return (self._coded(levels - 128, _LUMINANCE) + 128) / 255
        height, width = images.shape[-2:]
        colours = torch.tensor(_COLOURS, dtype=levels.dtype)
        planes = torch.einsum("ij,njhw->nihw", colours.to(levels.device), levels)
        light = self._coded(planes[:, :1] - 128, _LUMINANCE) + 128
        even = F.pad(planes[:, 1:], (0, width % 2, 0, height % 2), mode="replicate")
        half = self._coded(F.avg_pool2d(even, 2), _CHROMINANCE)
        chroma = F.interpolate(half, even.shape[-2:], mode="bilinear", align_corners=False)  # as libjpeg
        chroma = chroma[..., :height, :width]
        planes = torch.cat([light, chroma], 1)
        return torch.einsum("ij,njhw->nihw", colours.inverse().to(levels.device), planes) / 255

    def _coded(self, planes: Tensor, table: tuple[tuple[int, ...], ...]) -> Tensor:
        """Encode and decode planes (N, C, H, W) in blocks of 8x8 pixels."""
        height, width = planes.shape[-2:]
        padded = F.pad(planes, (0, -width % _SIDE, 0, -height % _SIDE), mode="replicate")
        blocks = padded.unflatten(3, (-1, _SIDE)).unflatten(2, (-1, _SIDE))
        cosines = _cosines().to(planes)
        sizes = self._steps(table).to(planes)[:, None, :]
        coefficients = torch.einsum("ai,nchiwj,bj->nchawb", cosines, blocks, cosines) / sizes
        rounded = coefficients.detach().round()
        smooth = (rounded + (coefficients - rounded) ** 3) * sizes
        decoded = torch.einsum("ai,nchawb,bj->nchiwj", cosines, smooth, cosines)
        return decoded.flatten(4).flatten(2, 3)[..., :height, :width]

    def _steps(self, table: tuple[tuple[int, ...], ...]) -> Tensor:
        """The quantisation steps for this quality, as in libjpeg."""
        percent = 5000 // self.quality if self.quality < 50 else 200 - 2 * self.quality
        return ((torch.tensor(table) * percent + 50) // 100).clamp(1, 255)


def _cosines() -> Tensor:
    """The matrix (8, 8) of the orthonormal discrete cosine transform."""
    frequency, position = torch.arange(_SIDE)[:, None], torch.arange(_SIDE)
    matrix = torch.cos((2 * position + 1) * frequency * math.pi / (2 * _SIDE)) / 2
    matrix[0] /= math.sqrt(2)
    return matrix
