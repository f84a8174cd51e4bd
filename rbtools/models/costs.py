"""Counts the parameters and multiply-adds of a network on the meta device, which allocates no memory and
computes nothing."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from rbtools import models
from rbtools.models.meta import meta_init


@cache
def of_arch(fields: tuple[tuple[str, Any], ...], classes: int, shape: models.Shape) -> tuple[int, int]:
    """Counts the parameters and multiply-adds of the architecture with these fields and values. Raises
    RbError in the same cases as `models.build`."""
    with meta_init():
        network = models.build(dict(fields), classes=classes, shape=shape)
    network = network.to("meta").eval()
    return parameters(network), multiply_adds(network, shape)


def parameters(network: nn.Module) -> int:
    """Returns the number of values in all parameters."""
    return sum(parameter.numel() for parameter in network.parameters())


def multiply_adds(network: nn.Module, shape: models.Shape) -> int:
    """Counts the multiply-adds of convolutions, linear layers and attention for one image (C, H, W). The
    network must be on the meta device in eval mode."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # its fused kernel is not counted
    try:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            network(torch.empty(2, *shape, device="meta"))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return int(counter.get_total_flops()) // 2 // 2  # two images; a multiply-add is two operations
