"""A network compiled by torch.compile block by block: what repeats, such as a cell, is compiled once.

A whole network takes as long to compile as it has layers. Blocks of one class have one program for each
number of channels, so a network of many blocks compiles in a fraction of the time and runs the same kernels,
but for those that would join two blocks.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rbtools.models import folding

BACKEND: str | Callable[..., Any] = "inductor"
_PROGRAMS = 64  # of one class: by its channels, strides, and with and without gradients


def repeated_blocks(network: nn.Module) -> list[nn.Module]:
    """The outermost modules of which there are several of one class, torch's own layers apart."""
    outermost = list(_outermost(network, Counter(map(type, _own(network)))))
    count = Counter(map(type, outermost))
    return [block for block in outermost if count[type(block)] > 1]


def _own(network: nn.Module) -> Iterator[nn.Module]:
    for module in network.modules():
        if any(module.children()) and not type(module).__module__.startswith("torch."):
            yield module


def _outermost(module: nn.Module, count: Counter[type[nn.Module]]) -> Iterator[nn.Module]:
    for child in module.children():
        if count[type(child)] > 1:
            yield child
        else:
            yield from _outermost(child, count)


def compile_network(network: nn.Module, probe: Tensor, notify: Callable[[str], None]) -> bool:
    """Compile the repeated blocks of a network in place, or where nothing repeats all of it.

    probe: images (N, C, H, W), N > 1, on which it is tried, with a gradient. False where that fails or gives
    other logits: the network is then as before, and `notify` is called with the reason.
    """
    with torch.no_grad():
        wanted = network(probe)
    blocks = repeated_blocks(network) or [network]
    try:
        config = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, _PROGRAMS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # dynamo reads `.grad` of what is no leaf
            for block in blocks:
                block.compile(backend=BACKEND, dynamic=True)
            images = probe.clone().requires_grad_(True)
            logits = network(images)
            torch.autograd.grad(logits.sum(), images, allow_unused=True)
            with torch.no_grad():
                network(probe)
        largest, apart = wanted.abs().max(), (logits.detach() - wanted).abs().max()
        if not bool(apart <= 0.02 * largest):  # bfloat16 stays below; NaN does not
            raise ValueError(f"compiled logits differ by {float(apart):.3g} of {float(largest):.3g}")
    except Exception as wrong:  # the compiler, or what it calls, may raise anything
        for block in blocks:
            block._compiled_call_impl = None
        notify(f"The network is not compiled ({folding.reason(wrong)}).")
        return False
    return True
