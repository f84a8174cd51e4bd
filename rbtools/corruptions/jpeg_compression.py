"""JPEG compression: blocks and lost detail."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.corruptions.base import Corruption, Draws

if TYPE_CHECKING:
    from torch import Tensor

PIECE = 32  # images that a thread takes at once
# Pixels from which on threads pay: below, what they wait for each other is longer than the coding itself.
LARGE = 128 * 128


@dataclass(frozen=True, kw_only=True)
class JpegCompression(Corruption):
    """Written and read as JPEG by Pillow at quality c, on the CPU; large images with threads.

    Images of other than three channels are compressed channel by channel, as grey ones.
    """

    name: ClassVar[str] = "jpeg_compression"
    severities: ClassVar[dict[str, tuple[int, ...]]] = {
        "cifar": (80, 65, 58, 50, 40),
        "imagenet": (25, 18, 15, 10, 7),
    }

    def corrupt_levels(self, levels: Tensor, constant: int, draws: Draws) -> Tensor:
        import torch

        channels, height, width = levels.shape[1:]
        pictures = levels.to(torch.uint8).cpu()
        if channels == 3:
            arrays = pictures.permute(0, 2, 3, 1).contiguous()
        else:
            arrays = pictures.reshape(-1, height, width)
        pieces = [piece.numpy() for piece in arrays.split(PIECE)]
        work = partial(compressed, quality=constant)
        threads = min(torch.get_num_threads(), len(pieces)) if height * width >= LARGE else 1
        if threads == 1:
            found = [work(piece) for piece in pieces]
        else:
            with ThreadPoolExecutor(threads) as pool:
                found = list(pool.map(work, pieces))
        result = torch.frombuffer(bytearray().join(found), dtype=torch.uint8).view(arrays.shape)
        result = result.permute(0, 3, 1, 2) if channels == 3 else result.view(levels.shape)
        return result.to(levels.device, torch.float32, memory_format=torch.contiguous_format)


def compressed(pictures: Any, quality: int) -> bytes:
    """The bytes of uint8 pictures (N, H, W) or (N, H, W, 3) after the way to JPEG and back."""
    from PIL import Image

    found = []
    for picture in pictures:
        stream = io.BytesIO()
        Image.fromarray(picture).save(stream, "JPEG", quality=quality)
        found.append(Image.open(stream).tobytes())
    return b"".join(found)
