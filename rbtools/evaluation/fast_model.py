"""The model that attacks run on: a fast copy that computes the same function.

Whether an example is broken is always decided in float32: by the exact model, or on a CPU by a float32 copy.
If two logits are nearly equal, the exact model also decides on a CPU (attacks/verdicts.py).
"""

from __future__ import annotations

import copy
import itertools
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rbtools.defences.defended import Defended
from rbtools.models import folding, fused
from rbtools.models.answering import AnsweringModel
from rbtools.models.normalize import Preprocessed
from rbtools.models.programs import Program

_PROBES = 2


class FastModel(NamedTuple):
    """The model for attacks, with the names of the preparation steps as in records.

    `refusal` is the reason why there is no fast copy. `remark` is the reason why a step was omitted. `judge`
    is a copy in float32, or None.
    """

    model: nn.Module
    steps: tuple[str, ...]
    refusal: str | None = None
    remark: str | None = None
    judge: nn.Module | None = None

    @property
    def float32_steps(self) -> tuple[str, ...]:
        """The preparation steps of the float32 copy (`judge`)."""
        return tuple(step for step in self.steps if step in ("folded", "channels-last")) if self.judge else ()


def make_fast_model(model: nn.Module, precision: str, shape: tuple[int, int, int]) -> FastModel:
    """A copy of the model in the given precision, in channels-last format, with BatchNorm folded into the
    convolutions before it. On a GPU in bfloat16, the convolution kernels also compute ReLU (models/fused.py).

    `model` is in eval mode and maps images float32 (N, C, H, W) in [0, 1] to logits (N, K); it is not
    changed. The copy returns float32 logits. With "bf16", two parts still compute in float32: the
    normalisation, because bfloat16 cannot represent steps of 1/255; and the last convolution or linear layer
    with the layers after it ("fp32-logits"), because margins below 1/128 of a logit would vanish. A network
    without other layers is copied in float32. BatchNorm is not folded if the network cannot be traced, or if
    the folded copy has different logits. If the model contains a program or its copy fails, attacks run on
    the model itself, and `refusal` is the reason. The copy of a defended network has the same defence stages,
    which compute in float32.
    """
    if isinstance(model, Defended):
        inner = make_fast_model(model.model, precision, shape)
        model = model.before(inner.model) if inner.model is not model.model else model
        return inner._replace(model=model, judge=None)
    network = model.network if isinstance(model, Preprocessed) else model
    if any(isinstance(module, (Program, AnsweringModel)) for module in model.modules()):
        return FastModel(model, ())
    bf16, folded, remark = precision == "bf16", None, None
    try:
        folded = _folded(network, shape)
    except Exception as wrong:  # tracing a network may raise anything
        remark = (
            f"BatchNorm is not folded into convolutions, so passes take longer ({folding.reason(wrong)})."
        )
    steps = [*(["folded"] if folded is not None else []), "channels-last"]
    normalization, probe = _normalization(model), _probe(network, shape)
    try:
        copied = _frozen(copy.deepcopy(network) if folded is None else folded)
        copied = copied.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        last = _last_layers(copied, probe) if bf16 else []
        exact = [copy.deepcopy(copied.get_submodule(name)) for name in last]
        in_float32 = copy.deepcopy(copied) if bf16 and not probe.is_cuda else copied
        copied = copied.bfloat16() if bf16 else copied
        try:
            quicker = fused.fuse(copied, probe.to(torch.bfloat16 if bf16 else probe.dtype))
        except (RuntimeError, ValueError) as wrong:
            quicker = None
            remark = f"ReLU has separate kernels, so passes take longer ({folding.reason(wrong)})."
        copied = copied if quicker is None else quicker
        for name, layer in zip(last, exact, strict=True):
            _in_float32(copied.get_submodule(name), layer)
        bf16 = bf16 and not is_float32(copied)
        steps += ["bf16", *(["fp32-logits"] if last else [])] if bf16 else []
        steps += [] if quicker is None else ["fused"]
        fast: nn.Module = _Fast(normalization, copied, bf16)
        judge = _Fast(normalization, in_float32, False) if bf16 else fast
        with torch.no_grad():
            fast(probe)
    except Exception as wrong:  # raised by the network's own code: it cannot be copied, or needs float32
        return FastModel(model, (), f"its fast copy fails ({folding.reason(wrong)})")
    return FastModel(fast, tuple(steps), remark=remark, judge=None if probe.is_cuda else judge)


def is_float32(model: nn.Module) -> bool:
    tensors = itertools.chain(model.parameters(), model.buffers())
    return all(tensor.dtype == torch.float32 for tensor in tensors if tensor.is_floating_point())


class _Fast(nn.Module):
    """A normalisation in float32, followed by the network in its own precision and memory format."""

    def __init__(self, normalization: nn.Module, network: nn.Module, bf16: bool) -> None:
        super().__init__()
        self.normalization, self.network, self.bf16 = normalization, network, bf16

    def forward(self, images: Tensor) -> Tensor:
        inputs = self.normalization(images)
        dtype = torch.bfloat16 if self.bf16 else inputs.dtype
        inputs = inputs.to(dtype, memory_format=torch.channels_last)
        logits: Tensor = self.network(inputs)
        return logits.float()


def _last_layers(network: nn.Module, probe: Tensor) -> list[str]:
    """The names of the last convolution or linear layer of a pass and of the layers after it, if they have
    weights. The list is empty if there is no such layer."""
    used: list[str] = []
    layers = {name: part for name, part in network.named_modules() if not any(part.children())}
    layers = {name: part for name, part in layers.items() if part.state_dict()}
    hooks = [
        part.register_forward_hook(lambda *_, name=name: used.append(name)) for name, part in layers.items()
    ]
    with torch.no_grad():
        network(probe)
    for hook in hooks:
        hook.remove()
    products = [place for place, name in enumerate(used) if isinstance(layers[name], nn.Linear | nn.Conv2d)]
    return used[products[-1] :] if products else []


def _in_float32(layer: nn.Module, exact: nn.Module) -> None:
    """Make a layer compute in float32 with the weights of `exact`, whatever the precision of its input."""
    layer.float().load_state_dict(exact.state_dict())
    layer.register_forward_pre_hook(lambda _, inputs: tuple(one.float() for one in inputs))


def _normalization(model: nn.Module) -> nn.Module:
    """The layers in front of the model's network."""
    if not isinstance(model, Preprocessed):
        return nn.Identity()
    alone = copy.copy(model)
    alone._modules, alone._buffers = {"network": nn.Identity()}, dict(model._buffers)
    return alone


def _frozen(network: nn.Module) -> nn.Module:
    return network.eval().requires_grad_(False)


def _probe(network: nn.Module, shape: tuple[int, int, int]) -> Tensor:
    """Two random images on the network's device."""
    parameter = next(network.parameters(), None)
    device = None if parameter is None else parameter.device
    return torch.rand(_PROBES, *shape, generator=torch.Generator().manual_seed(0)).to(device)


def _folded(network: nn.Module, shape: tuple[int, int, int]) -> nn.Module | None:
    """The network with BatchNorm folded into its convolutions, or None if it has no BatchNorm. Raises
    ValueError if folding changes the logits, and any error that tracing the network raises."""
    if not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules()):
        return None
    probe = _probe(network, shape)
    with torch.no_grad():
        folded, pairs = folding.fold(network)
        live, copied = dict(network.named_modules()), dict(folded.named_modules())
        for convolution, norm in pairs.items():
            weight, bias = folding.merged(live[convolution], live[norm], scale_first=False)
            copied[convolution].weight.copy_(weight)
            copied[convolution].bias.copy_(bias)
        folding.check_same(network(probe), _frozen(folded)(probe))
    return folded
