"""Compile a network with torch.compile block by block: repeated blocks, such as cells, are compiled once.

The time to compile a whole network grows with the number of its layers. Blocks of one class have one program
for each number of channels, so a network of many blocks compiles in a fraction of the time and runs the same
kernels, except those that would fuse operations of two blocks.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rbtools.models import folding

BACKEND: str | Callable[..., Any] = "inductor"
_PROGRAMS = 64  # programs of one class: by channels, strides, with and without gradients
_ROUNDS = 4  # timed passes; the first one is a warm-up


def repeated_blocks(network: nn.Module) -> list[nn.Module]:
    """The outermost modules of which there are several of one class, torch's own layers apart."""
    blocks = [
        m for m in network.modules() if any(m.children()) and not type(m).__module__.startswith("torch.")
    ]
    several = Counter(map(type, blocks))

    def outermost(module: nn.Module) -> Iterator[nn.Module]:
        for child in module.children():
            if several[type(child)] > 1:
                yield child
            else:
                yield from outermost(child)

    found = list(outermost(network))
    count = Counter(map(type, found))
    return [block for block in found if count[type(block)] > 1]


def compile_network(network: nn.Module, probe: Tensor, notify: Callable[[str], None]) -> bool:
    """Compile the repeated blocks of a network in place, or the whole network if no block repeats.

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
            warnings.simplefilter("ignore")  # dynamo reads `.grad` of tensors that are no leaves
            for block in blocks:
                block.compile(backend=BACKEND, dynamic=True)
            images = probe.clone().requires_grad_(True)
            logits = network(images)
            torch.autograd.grad(logits.sum(), images, allow_unused=True)
            with torch.no_grad():
                network(probe)
        largest, apart = wanted.abs().max(), (logits.detach() - wanted).abs().max()
        if not bool(apart <= 0.02 * largest):  # errors of bfloat16 are smaller; NaN fails this comparison
            raise ValueError(f"compiled logits differ by {float(apart):.3g} of {float(largest):.3g}")
    except Exception as wrong:  # the compiler and its back ends may raise anything
        undo(network)
        notify(f"The network is not compiled ({folding.reason(wrong)}).")
        return False
    return True


def undo(network: nn.Module) -> None:
    """Let a network that was compiled run as before."""
    for module in network.modules():
        module._compiled_call_impl = None


@contextlib.contextmanager
def undone(network: nn.Module) -> Iterator[None]:
    """Let a compiled network run as before during the block."""
    programs = [(module, module._compiled_call_impl) for module in network.modules()]
    undo(network)
    try:
        yield
    finally:
        for module, program in programs:
            module._compiled_call_impl = program


def seconds_of_a_pass(network: nn.Module, images: Tensor) -> float:
    """The shortest time of a forward pass and of one with a gradient, of images (N, C, H, W) together."""
    seconds = []
    for _ in range(_ROUNDS):
        inputs = images.clone().requires_grad_(True)
        start = time.perf_counter()
        with torch.no_grad():
            network(images)
        (gradient,) = torch.autograd.grad(network(inputs).sum(), inputs)
        float(gradient.sum())  # waits for a GPU
        seconds.append(time.perf_counter() - start)
    return min(seconds)
