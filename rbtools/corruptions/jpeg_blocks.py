"""JPEG compression and decompression of a batch of small images, computed without a file.

A JPEG file loses information only by rounding the transformed blocks. The steps are those of libjpeg-turbo
with its default settings: integer arithmetic ("islow"), chroma at half the resolution, smooth upsampling. All
numbers are multiples of a power of two that float32 or float64 contain exactly, so the result is the same on
every device and equals the result of Pillow.
"""

from __future__ import annotations

import functools
import io

from rbtools.lazy import F, Tensor, torch

# The cosine transform of eight values, times 2^13 sqrt(8), with the roundings of libjpeg: the left half of
# the matrix. The right half mirrors it, with the other sign in every second row.
COSINES = (
    (8192, 8192, 8192, 8192),
    (11363, 9633, 6437, 2260),
    (10703, 4433, -4433, -10703),
    (9633, -2259, -11362, -6436),
    (8192, -8192, -8192, 8192),
    (6437, -11362, 2261, 9633),
    (4433, -10704, 10704, -4433),
    (2260, -6436, 9633, -11363),
)
# Factors of the colours, times 2^16, for luma, blue and red chroma, and for the way back.
LUMA = (19595, 38470, 7471)
CHROMA = ((-11059, -21709, 32768), (32768, -27439, -5329))
BACK = ((0, 91881), (-22554, -46802), (116130, 0))
BELOW_HALF = 0.5 - 2.0**-16  # what chroma is rounded with
AWAY = 1 + 2.0**-40  # moves halves away from zero, and nothing else across a half


def compressed_blocks(levels: Tensor, quality: int) -> Tensor:
    """Integer grey levels (N, C, H, W), float32, after JPEG compression with this quality. Three channels are
    compressed as colours; otherwise, each channel is compressed separately."""
    height, width = levels.shape[2:]
    tables = _tables(quality, str(levels.device))
    if levels.shape[1] != 3:
        planes = _coded(_padded(levels.flatten(0, 1) - 128, 8, 8), tables[0])[:, :height, :width]
        return (planes + 128).view(levels.shape)
    colours = levels.unbind(1)
    luma = _coded(_padded(_mixed(colours, LUMA, 0.5 - 128), 8, 8), tables[0])[:, :height, :width].add_(128)
    chroma = torch.cat([_mixed(colours, factors, BELOW_HALF) for factors in CHROMA])
    small = _coded(_padded(_halved(chroma), 8, 8), tables[1])
    large = _doubled(small[:, : -(-height // 2), : -(-width // 2)])[:, :height, :width].chunk(2)
    result = torch.stack([_mixed(large, factors, 0.5).add_(luma) for factors in BACK], 1)
    return result.clamp_(0, 255)


def _mixed(planes: tuple[Tensor, ...], factors: tuple[int, ...], added: float) -> Tensor:
    """The sum of planes (N, H, W) times factors / 2^16, rounded down."""
    total = torch.full_like(planes[0], added, memory_format=torch.contiguous_format)
    for plane, factor in zip(planes, factors, strict=True):
        if factor:
            total.add_(plane, alpha=factor / (1 << 16))
    return total.floor_()


def _padded(planes: Tensor, rows: int, columns: int) -> Tensor:
    """Planes (N, H, W), whose last row and column are repeated up to multiples of these numbers."""
    below, right = -planes.shape[1] % rows, -planes.shape[2] % columns
    return F.pad(planes.unsqueeze(0), (0, right, 0, below), "replicate")[0] if below or right else planes


def _halved(planes: Tensor) -> Tensor:
    """The means of 2x2 pixels. Halves are rounded down and up in turns along a row."""
    planes = _padded(planes, 2, 16)
    rows = planes[:, ::2] + planes[:, 1::2]
    total = (rows[:, :, ::2] + rows[:, :, 1::2]).mul_(0.25).add_(0.25)
    total[:, :, 1::2] += 0.25
    return total.floor_()


def _doubled(planes: Tensor) -> Tensor:
    """Planes (N, H, W) of twice the size, by weights of 3/4 and 1/4 in each direction; one or two columns are
    repeated instead."""
    count, height, width = planes.shape
    if width <= 2:
        return planes.repeat_interleave(2, 1).repeat_interleave(2, 2)
    around = F.pad(planes.unsqueeze(0), (1, 1, 1, 1), "replicate")[0]
    result = planes.new_empty(count, height, 2, width, 2)
    centre = around[:, 1:-1] * (3 / 16) + 1 / 8
    for row, other in enumerate((around[:, :-2], around[:, 2:])):
        lines = torch.add(centre, other, alpha=1 / 16)
        torch.add(lines[:, :, :-2], lines[:, :, 1:-1], alpha=3, out=result[:, :, row, :, 0])
        torch.add(lines[:, :, 2:] - 1 / 16, lines[:, :, 1:-1], alpha=3, out=result[:, :, row, :, 1])
    return result.floor_().view(count, 2 * height, 2 * width)


def _coded(planes: Tensor, table: Tensor) -> Tensor:
    """Planes (N, 8 H, 8 W) from -128 to 127, whose cosine transform is rounded to multiples of the table."""
    count, height, width = planes.shape
    there, there_down, back, back_down = _matrices(str(planes.device))
    blocks = planes.view(count, height // 8, 8, width // 8, 8).permute(2, 4, 0, 1, 3)
    values = torch.empty(blocks.shape, dtype=torch.float64, device=planes.device).copy_(blocks)
    values = (there @ values.view(8, 8, -1)).add_(0.5).floor_()
    values = (there_down @ values.view(8, -1)).add_(0.5).floor_().view(8, 8, -1)
    values.mul_(AWAY / (8 * table)).round_().mul_(table)
    values = (back_down @ values.view(8, -1)).add_(0.5).floor_().view(8, 8, -1)
    values = (back @ values).add_(0.5).floor_().clamp_(-128, 127)
    return torch.empty_like(planes).copy_(
        values.view(blocks.shape).permute(2, 3, 0, 4, 1).reshape(planes.shape)
    )


@functools.lru_cache(maxsize=8)
def _matrices(device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The transform along rows and along columns, and their inverses, float64 (8, 8). Between the two, values
    are four times as large, as in libjpeg."""
    half = torch.tensor(COSINES, dtype=torch.float64, device=device)
    signs = torch.tensor([[1], [-1]] * 4, device=device)
    matrix = torch.cat([half, half.flip(1) * signs], 1)
    return matrix / (1 << 11), matrix / (1 << 15), matrix.T / (1 << 18), matrix.T / (1 << 11)


@functools.lru_cache(maxsize=64)
def _tables(quality: int, device: str) -> tuple[Tensor, ...]:
    """The quantisation tables of luma and chroma that Pillow writes for this quality, float64 (8, 8, 1)."""
    from PIL import Image, JpegImagePlugin

    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "JPEG", quality=quality)
    stream.seek(0)
    tables = JpegImagePlugin.JpegImageFile(stream).quantization
    return tuple(torch.tensor(tables[i], dtype=torch.float64, device=device).view(8, 8, 1) for i in (0, 1))
