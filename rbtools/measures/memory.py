"""How much memory there is, and how much a model's maps take. Imports torch: import inside functions only."""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn


def free(device: torch.device) -> int:
    """Bytes that are free on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo") as file:
            kibibytes = next(line.split()[1] for line in file if line.startswith("MemAvailable"))
        return int(kibibytes) * 1024
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def largest(model: nn.Module, images: Tensor) -> int:
    """Numbers of the largest map that any layer makes of these images (N, C, H, W)."""
    sizes = [images.numel()]

    def seen(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.numel())

    handles = [module.register_forward_hook(seen) for module in model.modules()]
    try:
        with torch.no_grad():
            model(images)
    finally:
        for handle in handles:
            handle.remove()
    return max(sizes)
