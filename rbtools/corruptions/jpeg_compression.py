"""JPEG compression: the image gets block artefacts and loses detail."""

from __future__ import annotations

import io
from dataclasses import dataclass

from rbtools.corruptions.base import Corruption, by_archive
from rbtools.lazy import Tensor, np, torch
from rbtools.rng.draws import Draws


@dataclass(frozen=True, kw_only=True)
class JpegCompression(Corruption):
    """JPEG compression by Pillow with quality c, on the CPU. If an image does not have three channels, each
    channel is compressed as a greyscale image."""

    name = "jpeg_compression"
    severities = by_archive(cifar=(80, 65, 58, 50, 40), imagenet=(25, 18, 15, 10, 7))

    def corrupt_levels(self, levels: Tensor, constant: int, draws: Draws) -> Tensor:
        return compress(levels, constant)


def compress(levels: Tensor, quality: int) -> Tensor:
    """Integer grey levels (N, C, H, W), float32, after JPEG compression by Pillow. Three channels are
    compressed as colours; otherwise, each channel is compressed separately."""
    channels, height, width = levels.shape[1:]
    pictures = levels.to(torch.uint8).cpu()
    if channels == 3:
        arrays = pictures.permute(0, 2, 3, 1).contiguous()
    else:
        arrays = pictures.reshape(-1, height, width)
    result = torch.frombuffer(compressed(arrays.numpy(), quality), dtype=torch.uint8).view(arrays.shape)
    result = result.permute(0, 3, 1, 2) if channels == 3 else result.view(levels.shape)
    return result.to(levels.device, torch.float32, memory_format=torch.contiguous_format)


def compressed(pictures: np.ndarray, quality: int) -> bytearray:
    """The bytes of uint8 pictures (N, H, W) or (N, H, W, 3) after JPEG compression, one after another,
    because Pillow keeps Python's global lock."""
    from PIL import Image

    result = bytearray()
    for picture in pictures:
        stream = io.BytesIO()
        Image.fromarray(picture).save(stream, "JPEG", quality=quality)
        result += Image.open(stream).tobytes()
    return result
