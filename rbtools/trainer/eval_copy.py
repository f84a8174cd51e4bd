"""A copy of the network under training for its inner attack: the same function in eval mode, faster.

prepare.py makes such a copy of weights that stay; here they change with every step, so the copy is made
once and takes the weights over anew before each attack.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from rbtools.models.normalize import Preprocessed

# Where the copy's logits differ by more than this share of the largest, it is not used.
_TOLERANCE = 1e-4
_BATCHNORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class EvalCopy(nn.Module):
    """BatchNorm folded into the convolution before it, channels last, in float32 or bfloat16.

    Images float32 (N, C, H, W) in [0, 1] -> logits (N, K). Normalisation stays in float32, because a
    step of 1/255 would drown in bfloat16. Call `follow` after each step of the training.
    """

    def __init__(self, model: nn.Module, network: nn.Module, folded: dict[str, str], *, bf16: bool) -> None:
        super().__init__()
        own = model.network if isinstance(model, Preprocessed) else model
        # In a dict and a tuple, so that they do not become submodules of this one.
        self._live = dict(own.named_modules())
        self._outer = (model,)
        self._folded = folded
        self.dtype = torch.bfloat16 if bf16 else None
        self.network = network
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        (norm,) = self._outer
        inputs = norm.inputs(images) if isinstance(norm, Preprocessed) else images
        inputs = inputs.to(self.dtype or inputs.dtype, memory_format=torch.channels_last)
        logits: Tensor = self.network(inputs)
        return logits.float()

    @property
    def folds(self) -> bool:
        """Whether any BatchNorm is gone."""
        return bool(self._folded)

    @torch.no_grad()
    def follow(self) -> None:
        """Take over the weights of the network under training."""
        for name, module in self.network.named_modules():
            source = self._live.get(name)
            if source is None:
                continue
            if name in self._folded:
                norm = self._live[self._folded[name]]
                weight, bias = _merged(source, norm)
                module.weight.copy_(weight)
                module.bias.copy_(bias)
                continue
            own = {**module._parameters, **module._buffers}
            for key, value in own.items():
                theirs = getattr(source, key, None)
                if value is not None and theirs is not None:
                    value.copy_(theirs)


def _merged(convolution: Any, norm: Any) -> tuple[Tensor, Tensor]:
    """Weight and bias of one convolution that does what the two do in eval mode."""
    scale = (norm.running_var + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight
    bias = -norm.running_mean if convolution.bias is None else convolution.bias - norm.running_mean
    bias = bias * scale
    if norm.bias is not None:
        bias = bias + norm.bias
    return convolution.weight * scale.view(-1, *[1] * (convolution.weight.ndim - 1)), bias


def of(model: nn.Module, shape: tuple[int, int, int], *, bf16: bool) -> EvalCopy | None:
    """The shadow of a model, or None where it cannot be had: what fx cannot trace stays as it is."""
    own = model.network if isinstance(model, Preprocessed) else model
    parameter = next(own.parameters(), None)
    if parameter is None:
        return None
    before = [(module, module.training) for module in model.modules()]
    random = torch.Generator().manual_seed(0)
    probe = torch.rand(2, *shape, generator=random).to(parameter.device)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # fx tells of what it cannot see; the probe tells us
            model.eval()
            wanted = model(probe)
            network, folded = _folded(own)
            plain = EvalCopy(model, network, folded, bf16=False)
            plain.follow()
            error = (plain(probe) - wanted).abs().max()
            if not bool(error <= _TOLERANCE * wanted.abs().max()):
                return None
    except Exception:  # tracing fails in as many ways as there are models
        return None
    finally:
        for module, training in before:
            module.training = training
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return EvalCopy(model, network.bfloat16() if bf16 else network, folded, bf16=bf16)


def _folded(network: nn.Module) -> tuple[nn.Module, dict[str, str]]:
    """A traced copy in which BatchNorms that follow a convolution alone are gone: names of both."""
    with_hooks = copy.deepcopy(network)
    for module in with_hooks.modules():
        module._forward_hooks.clear()
    traced = torch.fx.symbolic_trace(with_hooks.eval())
    modules = dict(traced.named_modules())
    folded: dict[str, str] = {}
    for node in list(traced.graph.nodes):
        if node.op != "call_module" or not isinstance(modules[node.target], _BATCHNORMS):
            continue
        before = node.args[0]
        if before.op != "call_module" or len(before.users) > 1 or before.target in folded:
            continue
        convolution, norm = modules[before.target], modules[node.target]
        if not isinstance(convolution, nn.Conv2d) or norm.running_var is None:
            continue
        if convolution.bias is None:
            convolution.bias = nn.Parameter(torch.zeros_like(norm.running_mean))
        folded[before.target] = node.target
        node.replace_all_uses_with(before)
        traced.graph.erase_node(node)
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced, folded
