"""Convolutions on a GPU in bfloat16 that add a bias and a shortcut and apply ReLU in one cuDNN kernel.

Torch's layers write and read each activation up to four times. On an H200, the folded ResNet-18 needed 5.4 ms
instead of 10.0 ms for 2,048 images, and 12.5 ms instead of 16.9 ms with the gradient of the images (part
`passes` of bench/gpu.py). Training does not use these layers, because PGD-10 training with batches of 128 did
not become faster.
"""

from __future__ import annotations

import copy
import operator
from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.autograd.function import once_differentiable

from rbtools.models import folding

# Shares of the largest logit and of the norm of the gradient; larger than rounding in bfloat16.
_TOLERANCE, _OF_GRADIENT = 0.02, 0.5


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs, summand, convolution):  # type: ignore[no-untyped-def]
        result = convolution.kernel(inputs, summand)
        ctx.convolution, ctx.sums = convolution, summand is not None
        ctx.save_for_backward(inputs, result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        own, (inputs, result) = ctx.convolution, ctx.saved_tensors
        before = torch.ops.aten.threshold_backward(gradient, result, 0)
        how = (own.stride, own.padding, own.dilation, False, (0, 0), own.groups, (True, False, False))
        of_inputs = torch.ops.aten.convolution_backward(before, inputs, own.weight, None, *how)[0]
        return of_inputs, before if ctx.sums else None, None


class ActivatedConvolution(nn.Conv2d):
    """Computes ReLU(convolution + bias + summand): (N, C, H, W) -> (N, C', H', W').

    Only the inputs and the summand have gradients.
    """

    def forward(self, inputs: Tensor, summand: Tensor | None = None) -> Tensor:
        wanted = any(tensor is not None and tensor.requires_grad for tensor in (inputs, summand))
        if not (torch.is_grad_enabled() and wanted):
            return self.kernel(inputs, summand)
        result: Tensor = _WithGradient.apply(inputs, summand, self)
        return result

    def kernel(self, inputs: Tensor, summand: Tensor | None) -> Tensor:
        how: Any = (self.stride, self.padding, self.dilation, self.groups)
        if not inputs.is_cuda or not len(inputs):
            result = super().forward(inputs)
            return F.relu(result if summand is None else result + summand)
        if summand is None:
            return torch.cudnn_convolution_relu(inputs, self.weight, self.bias, *how)
        return torch.cudnn_convolution_add_relu(inputs, self.weight, summand, 1.0, self.bias, *how)


def fuse(network: nn.Module, inputs: Tensor) -> nn.Module | None:
    """Return a copy of a traced network with fused convolutions.

    The result is None if no convolution can be fused, or if the inputs are not bfloat16 on a GPU. The weights
    of `network` must be constant. `inputs` (N, C, H, W) is an example batch. The modules of the copy keep
    their names. Raises ValueError if the logits or gradients of the copy differ, as with broadcasting sums
    and in-place layers, and RuntimeError if cuDNN has no suitable kernel.
    """
    if not (isinstance(network, fx.GraphModule) and inputs.is_cuda and inputs.dtype == torch.bfloat16):
        return None
    copied = copy.deepcopy(network)
    if not fuse_in_place(copied):
        return None
    logits, gradient = _logits_and_gradient(network, inputs)
    fused_logits, fused_gradient = _logits_and_gradient(copied, inputs)
    folding.check_same(logits, fused_logits, _TOLERANCE, "fused copy")
    if not bool((gradient - fused_gradient).norm() <= _OF_GRADIENT * gradient.norm()):  # false for NaN
        raise ValueError("the fused copy returns different gradients")
    return copied


def _logits_and_gradient(network: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        inputs = inputs.detach().requires_grad_(True)
        logits = network(inputs).float()
        (gradient,) = torch.autograd.grad(logits.square().sum(), inputs)
    return logits.detach(), gradient.float()


def fuse_in_place(traced: fx.GraphModule) -> int:
    """Fuse each convolution with the ReLU, or the sum and the ReLU, that follow it. Returns their number."""
    modules, count = dict(traced.named_modules()), 0
    calls = Counter(node.target for node in traced.graph.nodes if node.op == "call_module")
    for node in list(traced.graph.nodes):
        if not _is_relu(node, modules):
            continue
        before: Any = node.args[0]
        summands: tuple[Any, ...] = ()
        if _is_sum(before):
            one, other = before.args
            ours = _is_convolution(one, modules, calls)
            convolution, summands = (one, (other,)) if ours else (other, (one,))
        else:
            convolution = before
        if not _is_convolution(convolution, modules, calls):
            continue
        modules[convolution.target].__class__ = ActivatedConvolution
        with traced.graph.inserting_before(node):
            made = traced.graph.call_module(convolution.target, (convolution.args[0], *summands))
        node.replace_all_uses_with(made)
        for gone in dict.fromkeys((node, before, convolution)):
            traced.graph.erase_node(gone)
        count += 1
    traced.recompile()
    return count


def _is_relu(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if not node.args:
        return False
    if node.op == "call_module":
        return isinstance(modules[str(node.target)], nn.ReLU)
    return node.op == "call_function" and node.target in (F.relu, torch.relu)


def _is_sum(node: Any) -> bool:
    if not (isinstance(node, fx.Node) and node.op == "call_function" and len(node.users) == 1):
        return False
    if node.target not in (operator.add, torch.add) or node.kwargs:
        return False
    return all(isinstance(part, fx.Node) for part in node.args) and len(set(node.args)) == 2


def _is_convolution(node: Any, modules: dict[str, nn.Module], calls: Counter[Any]) -> bool:
    if not (isinstance(node, fx.Node) and node.op == "call_module" and len(node.users) == 1):
        return False
    layer: Any = modules[str(node.target)]
    plain = type(layer) is nn.Conv2d and layer.bias is not None and calls[node.target] == 1
    return plain and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
