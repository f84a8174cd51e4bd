"""Augmentation of uint8 batches on the device, without a Python loop over the images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rbtools.attacks.active_examples import uploaded
from rbtools.lazy import F, torch
from rbtools.rng.draws import Draws

if TYPE_CHECKING:
    from torch import Tensor


def pixels(images: Tensor) -> Tensor:
    """Convert images, uint8 or float in [0, 1], to float32 in [0, 1]."""
    return images.float().div(255) if images.dtype == torch.uint8 else images.float()


def augment(images: Tensor, kinds: Sequence[str], draws: Draws) -> Tensor:
    """Crop and flip a batch (N, C, H, W). The choices for an image depend only on its random numbers.

    `crop` pads each edge with zeros, an eighth of the side wide, and selects a window at a random place.
    `crop-reflect` does the same with padding by reflection. `flip` mirrors half of the examples.
    """
    if "crop" in kinds or "crop-reflect" in kinds:
        images = _crop(images, draws.child("crop"), reflect="crop-reflect" in kinds)
    if "flip" in kinds:
        flip = _integers(draws.child("flip"), 2, (1, 1, 1)).bool()
        images = torch.where(flip, images.flip(3), images)
    return images


def _crop(images: Tensor, draws: Draws, *, reflect: bool) -> Tensor:
    count, channels, height, width = images.shape
    pad = max(height // 8, 1)
    edges = (pad, pad, pad, pad)
    if reflect:  # has no uint8 kernel; float32 represents all 256 values
        padded = F.pad(images.float(), edges, mode="reflect").to(images.dtype)
    else:
        padded = F.pad(images, edges)
    corner = _integers(draws, 2 * pad + 1, (2,))
    rows = corner[:, :1] + torch.arange(height, device=images.device)
    columns = corner[:, 1:] + torch.arange(width, device=images.device)
    batch = torch.arange(count, device=images.device).view(-1, 1, 1, 1)
    channel = torch.arange(channels, device=images.device).view(1, -1, 1, 1)
    return padded[batch, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _integers(draws: Draws, high: int, shape: Sequence[int]) -> Tensor:
    """Random integers from `draws`, generated on the CPU if the indices of the examples are there, because a
    few numbers take a hundred kernels on a GPU. The numbers are the same on both devices."""
    if draws.device.type == "cpu" or draws.host is None:
        return draws.integers(high, shape)
    return uploaded(draws.on_host().integers(high, shape), draws.device)


def cutout(images: Tensor, length: int, draws: Draws) -> Tensor:
    """Draw a black square at a random place inside each image (N, C, H, W)."""
    height, width = images.shape[2:]
    own = draws.child("cutout")
    top = _integers(own.child("row"), height - length + 1, (1,))
    left = _integers(own.child("column"), width - length + 1, (1,))
    rows, columns = (torch.arange(side, device=images.device) for side in (height, width))
    in_rows = (rows >= top) & (rows < top + length)
    in_columns = (columns >= left) & (columns < left + length)
    return images.masked_fill((in_rows[:, :, None] & in_columns[:, None, :])[:, None], 0)
