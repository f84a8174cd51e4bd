"""A model made ready to be searched: the same function, computed faster.

A search may run on it; whether an example is broken is decided by the model as it is, in float32.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rbtools.errors import shown
from rbtools.models import folding
from rbtools.models.normalize import Preprocessed
from rbtools.models.programs import Program

_PROBES = 2


class FastModel(NamedTuple):
    """The model for searches, what was done to it, in the words of the record, and why nothing could be."""

    model: nn.Module
    how: tuple[str, ...]
    refusal: str | None = None


def make_fast_model(
    model: nn.Module, precision: str, shape: tuple[int, int, int], *, compiled: bool = False
) -> FastModel:
    """A copy with BatchNorm folded into the convolutions before it, channels last, in that precision.

    model: eval mode, images float32 (N, C, H, W) in [0, 1] -> logits (N, K); it stays as it is. The copy
    takes the same images and gives float32 logits; in "bf16" the network's own arithmetic is bfloat16,
    the normalisation before it is not, because a step of 1/255 would drown there. A network that cannot
    be traced keeps its BatchNorm; one whose copy gives other logits is not folded either. A program, and a
    network that does not run that way (`refusal` says why), is searched as it is.
    """
    network = model.network if isinstance(model, Preprocessed) else model
    if any(isinstance(module, Program) for module in model.modules()):
        return FastModel(model, ())
    bf16 = precision == "bf16"
    folded = _folded(network, shape)
    how = [*(["folded"] if folded is not None else []), "channels-last", *(["bf16"] if bf16 else [])]
    normalization, probe = _normalization(model), _probe(network, shape)
    try:
        copied = _frozen(copy.deepcopy(network) if folded is None else folded)
        copied = copied.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        fast: nn.Module = _Fast(normalization, copied.bfloat16() if bf16 else copied, bf16)
        with torch.no_grad():
            fast(probe)
    except Exception as wrong:  # of the network's own code: it may not copy, or ask for float32
        return FastModel(model, (), f"a copy of it fails ({type(wrong).__name__}: {shown(str(wrong), 200)})")
    if compiled:
        fast = torch.compile(fast, dynamic=True)  # type: ignore[assignment]
        how.append("compiled")
    return FastModel(fast, tuple(how))


class _Fast(nn.Module):
    """Normalisation in float32, then the network in its own precision and memory format."""

    def __init__(self, normalization: nn.Module, network: nn.Module, bf16: bool) -> None:
        super().__init__()
        self.normalization, self.network, self.bf16 = normalization, network, bf16

    def forward(self, images: Tensor) -> Tensor:
        inputs = self.normalization(images)
        dtype = torch.bfloat16 if self.bf16 else inputs.dtype
        inputs = inputs.to(dtype, memory_format=torch.channels_last)
        logits: Tensor = self.network(inputs)
        return logits.float()


def _normalization(model: nn.Module) -> nn.Module:
    """The part of the model before its network, as a module of its own."""
    if not isinstance(model, Preprocessed):
        return nn.Identity()
    alone = copy.copy(model)
    alone._modules, alone._buffers = {"network": nn.Identity()}, dict(model._buffers)
    return alone


def _frozen(network: nn.Module) -> nn.Module:
    return network.eval().requires_grad_(False)


def _probe(network: nn.Module, shape: tuple[int, int, int]) -> Tensor:
    """Two images where the network is."""
    parameter = next(network.parameters(), None)
    device = None if parameter is None else parameter.device
    return torch.rand(_PROBES, *shape, generator=torch.Generator().manual_seed(0)).to(device)


def _folded(network: nn.Module, shape: tuple[int, int, int]) -> nn.Module | None:
    """The network with BatchNorm in its convolutions; None where that cannot be, or is not the same."""
    if not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules()):
        return None
    probe = _probe(network, shape)
    try:
        with torch.no_grad():
            folded, pairs = folding.fold(network)
            live, copied = dict(network.named_modules()), dict(folded.named_modules())
            for convolution, norm in pairs.items():
                weight, bias = folding.merged(live[convolution], live[norm], scale_first=False)
                copied[convolution].weight.copy_(weight)
                copied[convolution].bias.copy_(bias)
            logits = _frozen(folded)(probe)
            return folded if folding.is_same(network(probe), logits) else None
    except Exception:  # tracing fails in as many ways as there are models
        return None
