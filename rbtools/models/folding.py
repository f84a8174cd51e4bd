"""Folds each BatchNorm into the convolution before it, which does not change the outputs in eval mode."""

from __future__ import annotations

import copy
import re
import warnings

import torch
from torch import Tensor, nn

from rbtools.check_input import give_copies
from rbtools.errors import shown

# A folded copy whose logits differ by more than this share of the largest is not used.
TOLERANCE = 1e-4
_BATCHNORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def fold(network: nn.Module) -> tuple[nn.Module, dict[str, str]]:
    """Return a traced copy of the network without the BatchNorm layers that directly follow a convolution.

    The dict maps the name of each such convolution to the name of its BatchNorm. The convolutions of the copy
    have their original weights, and `merged` computes the new ones. Raises the exceptions of torch.fx.
    """
    copied = copy.deepcopy(network)
    for module in copied.modules():
        module._forward_hooks.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of parts that fx cannot trace; the caller compares logits
        traced = torch.fx.symbolic_trace(copied.eval())
    modules = dict(traced.named_modules())
    pairs: dict[str, str] = {}
    for node in list(traced.graph.nodes):
        if node.op != "call_module" or not isinstance(modules[node.target], _BATCHNORMS):
            continue
        before = node.args[0]
        if before.op != "call_module" or len(before.users) > 1 or before.target in pairs:
            continue
        convolution, norm = modules[before.target], modules[node.target]
        if not isinstance(convolution, nn.Conv2d) or norm.running_var is None:
            continue
        if convolution.bias is None:
            convolution.bias = nn.Parameter(torch.zeros_like(norm.running_mean))
        pairs[before.target] = node.target
        node.replace_all_uses_with(before)
        traced.graph.erase_node(node)
    traced.delete_all_unused_submodules()
    traced.recompile()
    if give_copies in network._forward_pre_hooks.values():
        traced.register_forward_pre_hook(give_copies)  # fx leaves out the hooks of the whole network
    return traced, pairs


def merged(convolution: nn.Conv2d, norm: nn.BatchNorm2d, *, scale_first: bool) -> tuple[Tensor, Tensor]:
    """Returns weight and bias of a convolution that is equivalent to both layers in eval mode.

    Two orders of multiplication differ in the last bit of the bias, and stored results depend on it: training
    uses `scale_first`, and evaluation the order of torch's fusion.
    """
    assert norm.running_mean is not None and norm.running_var is not None
    scale = inverse = (norm.running_var + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = inverse * norm.weight
    bias = -norm.running_mean if convolution.bias is None else convolution.bias - norm.running_mean
    torch_order = not scale_first and norm.weight is not None
    bias = bias * inverse * norm.weight if torch_order else bias * scale
    if norm.bias is not None:
        bias = bias + norm.bias
    return convolution.weight * scale.view(-1, *[1] * (convolution.weight.ndim - 1)), bias


def check_same(
    expected: Tensor, found: Tensor, tolerance: float = TOLERANCE, what: str = "folded copy"
) -> None:
    """Raise ValueError if two results differ by more than `tolerance` of the largest absolute value."""
    largest, difference = float(expected.abs().max()), float((expected - found).abs().max())
    if not difference <= tolerance * largest:  # NaN fails this comparison, too
        raise ValueError(
            f"the results of the {what} differ by {difference:.3g}; the largest is {largest:.3g}"
        )


def reason(wrong: Exception) -> str:
    """Returns the first sentence of an exception's message, without torch's advice and links."""
    first = re.split(r"\.\s|\n|https?://", str(wrong).strip(), maxsplit=1)[0]
    return f"{type(wrong).__name__}: {shown(first.rstrip(), 200)}"
