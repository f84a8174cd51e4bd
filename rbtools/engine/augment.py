"""Augmentation on the device: uint8 batches, no Python work per image."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rbtools.engine.draws import Draws


def augment(images: Tensor, kinds: Sequence[str], draws: Draws, epoch: int) -> Tensor:
    """Crop and flip a uint8 batch (N, C, H, W); each image's choices belong to (example, epoch).

    `crop`: zero padding of an eighth of the side on each edge, then a window at a random place;
    `flip`: left-right for half of the examples.
    """
    if "crop" in kinds:
        images = _crop(images, draws.child("crop"), epoch)
    if "flip" in kinds:
        flip = draws.child("flip").integers(2, (1, 1, 1), epoch).bool()
        images = torch.where(flip, images.flip(3), images)
    return images


def _crop(images: Tensor, draws: Draws, epoch: int) -> Tensor:
    count, channels, height, width = images.shape
    pad = max(height // 8, 1)
    padded = F.pad(images, (pad, pad, pad, pad))
    corner = draws.integers(2 * pad + 1, (2,), epoch)
    rows = corner[:, :1] + torch.arange(height, device=images.device)
    columns = corner[:, 1:] + torch.arange(width, device=images.device)
    batch = torch.arange(count, device=images.device).view(-1, 1, 1, 1)
    channel = torch.arange(channels, device=images.device).view(1, -1, 1, 1)
    return padded[batch, channel, rows[:, None, :, None], columns[:, None, None, :]]
