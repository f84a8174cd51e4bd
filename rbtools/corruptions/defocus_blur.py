"""Defocus blur: a point becomes a disk, as with a lens out of focus."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from rbtools.corruptions.base import Corruption, by_archive
from rbtools.corruptions.imaging import Kernel, by_taps
from rbtools.lazy import Tensor, torch
from rbtools.rng.draws import Draws

FFT_FROM = 11  # kernel size from which the FFT is faster (21x21 on 224 pixels: 6 times)
NEGLIGIBLE = 1e-17  # a weight below this cannot change a float64 sum of weights that add up to 1


@dataclass(frozen=True, kw_only=True)
class DefocusBlur(Corruption):
    """Filters each channel with an antialiased disk. The constants are (radius, sigma) in pixels.

    The image is mirrored at its border without repeating the edge pixel (`cv2.BORDER_REFLECT_101`),
    repeatedly if the kernel is wider than the image, as in OpenCV. Images of 8x8 pixels are allowed at every
    severity, although a blurred pixel covers most of the image for radii of 3 or more.
    """

    name = "defocus_blur"
    severities = by_archive(
        cifar=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        imagenet=((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    )

    def corrupt(self, pixels: Tensor, constant: tuple[float, float], draws: Draws) -> Tensor:
        kernel = disk(*constant)
        reach = len(kernel) // 2
        rows, columns = (torch.tensor(mirrored(n, reach), device=pixels.device) for n in pixels.shape[2:])
        padded = pixels[:, :, rows][:, :, :, columns]
        return by_taps(padded, kernel) if len(kernel) < FFT_FROM else by_fft(padded, kernel)


def by_fft(padded: Tensor, kernel: Kernel) -> Tensor:
    """Like `imaging.by_taps`, but by FFT, with errors near 1e-15; faster for large kernels."""
    size, shape = len(kernel), padded.shape[2:]
    flipped = torch.tensor(kernel, dtype=padded.dtype, device=padded.device).flip(0, 1)
    spectrum = torch.fft.rfft2(padded) * torch.fft.rfft2(flipped, s=shape)
    blurred: Tensor = torch.fft.irfft2(spectrum, s=shape)
    return blurred[:, :, size - 1 :, size - 1 :]


def mirrored(size: int, reach: int) -> list[int]:
    """The source indices of the positions -reach to size + reach - 1, mirrored at the outermost pixels."""
    period = max(2 * (size - 1), 1)
    return [min(i % period, -i % period) for i in range(-reach, size + reach)]


@functools.lru_cache(maxsize=32)
def disk(radius: float, sigma: float) -> Kernel:
    """The square kernel of float32 weights, without zero rows and columns at its border.

    A 0/1 disk on a grid of 17x17 pixels (larger for larger radii) is divided by its sum and blurred by a
    Gaussian of 3x3 or 5x5 pixels. For radius 8 and 10, the grid ends at the edge of the disk, as in the
    reference, so the weights sum to 1.013 and 1.011. The sums are computed in float32, as in OpenCV. If the
    float32 weights sum to slightly less than 1 (ImageNet radii 3 to 6), truncation lowers the grey level of a
    flat region by one.
    """
    half = 8 if radius <= 8 else int(radius)
    taps = 1 if radius <= 8 else 2
    line = torch.arange(-half, half + 1)
    grid = (line[:, None] ** 2 + line[None, :] ** 2 <= radius**2).float()
    kernel = grid / grid.sum()
    weights = [math.exp(-(offset**2) / (2 * sigma**2)) for offset in range(-taps, taps + 1)]
    gaussian = torch.tensor([weight / sum(weights) for weight in weights], dtype=torch.float32)
    for _ in range(2):  # along one axis, then, transposed, along the other
        source = kernel[:, mirrored(2 * half + 1, taps)]
        size = kernel.shape[1]
        kernel = gaussian[taps] * source[:, taps : taps + size]
        for step in range(1, taps + 1):
            pair = source[:, taps - step :][:, :size] + source[:, taps + step :][:, :size]
            kernel = kernel + gaussian[taps + step] * pair
        kernel = kernel.T
    inside = [i for i in range(2 * half + 1) if float(kernel[i].max()) > NEGLIGIBLE]
    support = slice(inside[0], inside[-1] + 1)
    return tuple(tuple(row) for row in kernel[support, support].tolist())
