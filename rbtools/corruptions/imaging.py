"""Image operations that several corruptions use, on batches of planes."""

from __future__ import annotations

import functools
import math

from rbtools.lazy import F, Tensor, torch

# Sums of weighted pixels may miss an exact whole grey level by up to this much, differently on every machine
# and for every batch; the tolerance is far below any difference that matters to the truncation.
HAIR = 1e-7

Kernel = tuple[tuple[float, ...], ...]  # rows of weights, square with an odd side


def by_taps(padded: Tensor, kernel: Kernel) -> Tensor:
    """Correlates float64 (N, C, H + k - 1, W + k - 1) with a k x k kernel, by adding one shifted copy per
    weight. For 3x3 kernels on a CPU this is 13 times as fast as `conv2d`."""
    size = len(kernel)
    height, width = padded.shape[2] - size + 1, padded.shape[3] - size + 1
    total = torch.zeros_like(padded[:, :, :height, :width])
    for i, row in enumerate(kernel):
        for j, weight in enumerate(row):
            if weight:
                total.add_(padded[:, :, i : i + height, j : j + width], alpha=weight)
    return total


def gaussian_matrix(size: int, sigma: float, truncate: float, mirror: bool) -> Tensor:
    """The Gaussian blur of a line of pixels, as a float64 matrix (size, size).

    The kernel extends to truncate * sigma pixels (rounded) and sums to 1. Beyond the border, the edge pixel
    is repeated ("nearest" in scipy), or with `mirror`, the line is mirrored and its edge pixel occurs twice
    ("reflect").
    """
    reach = int(truncate * sigma + 0.5)
    weights = [math.exp(-0.5 * (k / sigma) ** 2) if reach else 1.0 for k in range(-reach, reach + 1)]
    total = sum(weights)
    rows = torch.arange(size)
    matrix = torch.zeros(size, size, dtype=torch.float64)
    for offset, weight in zip(range(-reach, reach + 1), weights, strict=True):
        places = rows + offset
        if mirror:
            places = places % (2 * size)
            places = torch.minimum(places, 2 * size - 1 - places)
        else:
            places = places.clamp(0, size - 1)
        matrix[rows, places] += weight / total
    return matrix


@functools.lru_cache(maxsize=32)
def _blurs(
    height: int, width: int, sigma: float, truncate: float, mirror: bool, device: str
) -> tuple[Tensor, Tensor]:
    down, across = (gaussian_matrix(size, sigma, truncate, mirror) for size in (height, width))
    return down.to(device), across.T.contiguous().to(device)


def gaussian_blur(planes: Tensor, sigma: float, truncate: float = 4.0, mirror: bool = False) -> Tensor:
    """Blur float64 planes (..., H, W) by a Gaussian of `sigma` pixels, as described in `gaussian_matrix`. For
    32 pixels, two matrix products are 3 times as fast as one shifted sum per weight."""
    if int(truncate * sigma + 0.5) == 0:
        return planes
    down, across = _blurs(*planes.shape[-2:], sigma, truncate, mirror, str(planes.device))
    return down @ (planes @ across)


def zoomed(planes: Tensor, factor: float) -> Tensor:
    """The centre of planes (N, C, H, W), which is 1 / factor of each side, enlarged to the full size by
    linear interpolation with aligned corners, as in `scipy.ndimage.zoom(order=1)`, and cropped."""
    sizes = planes.shape[2:]
    sides = [math.ceil(size / factor) for size in sizes]
    top, left = ((size - crop) // 2 for size, crop in zip(sizes, sides, strict=True))
    crop = planes[:, :, top : top + sides[0], left : left + sides[1]]
    grown = [round(size * factor) for size in sides]
    if grown != sides:
        crop = F.interpolate(crop, size=grown, mode="bilinear", align_corners=True)
    top, left = ((large - size) // 2 for size, large in zip(sizes, grown, strict=True))
    return crop[:, :, top : top + sizes[0], left : left + sizes[1]]


def motion_blurred(planes: Tensor, radius: int, sigma: float, angles: Tensor) -> Tensor:
    """Blur float32 planes (N, C, H, W) along a line that starts at each pixel, with one angle per image (N,),
    in degrees, clockwise from the right.

    The blur follows ImageMagick: half a Gaussian with 2 r + 1 weights, with one weight for each pixel of
    distance along the line. Each weight is applied to the pixel nearest to the line, and edge pixels are
    repeated beyond the border.
    """
    width = 2 * radius + 1
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(width)]
    steps = torch.arange(width, device=planes.device, dtype=torch.float64)
    turn = torch.deg2rad(angles.double())[:, None]
    down, right = ((steps * part - 0.5).ceil().long() for part in (turn.sin(), turn.cos()))
    reach = width - 1
    padded = F.pad(planes, (reach, reach, reach, reach), mode="replicate")
    rows, columns = planes.shape[2:]
    stride = columns + 2 * reach
    base = torch.arange(rows, device=planes.device)[:, None] * stride
    places = (base + torch.arange(columns, device=planes.device)).view(1, 1, -1)
    starts = (down + reach) * stride + right + reach
    flat = padded.flatten(2)
    total = torch.zeros_like(planes).flatten(2)
    for i, weight in enumerate(weights):
        index = (places + starts[:, i, None, None]).expand(-1, planes.shape[1], -1)
        total.add_(flat.gather(2, index), alpha=weight / sum(weights))
    return total.view_as(planes)


def sampled(planes: Tensor, down: Tensor, right: Tensor, edge_twice: bool) -> Tensor:
    """Planes (N, C, H, W), sampled by linear interpolation at rows `down` and columns `right` (N, H, W).
    Beyond the border, the image is mirrored, with its edge pixels once or, with `edge_twice`, twice."""
    height, width = planes.shape[2:]
    if edge_twice:
        grid = torch.stack([(2 * right + 1) / width - 1, (2 * down + 1) / height - 1], dim=-1)
    else:
        grid = torch.stack([2 * right / max(width - 1, 1) - 1, 2 * down / max(height - 1, 1) - 1], dim=-1)
    return F.grid_sample(
        planes, grid, mode="bilinear", padding_mode="reflection", align_corners=not edge_twice
    )


def grey(pixels: Tensor) -> Tensor:
    """The brightness (N, 1, H, W) of pixels: the luma for three channels, otherwise the mean."""
    if pixels.shape[1] != 3:
        return pixels.mean(dim=1, keepdim=True)
    red, green, blue = pixels.unbind(1)
    return (0.299 * red + 0.587 * green + 0.114 * blue).unsqueeze(1)
