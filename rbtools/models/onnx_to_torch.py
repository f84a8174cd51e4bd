"""Converts the graph of an ONNX model to a torch network with onnx2torch."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch import Tensor, nn

from rbtools.errors import RbError, shown

# The newest operators that onnx2torch knows. Most newer ones compute the same, and every network is compared.
_OPSET = 17
_LATER = (
    "allowzero",
    "num_outputs",
)  # attributes of later operators, whose usual values are the only ones before
_NEAR = 1e-4  # outputs that differ by no more than this share of the logits' range are equal
_FEW = 3  # images of another batch, because a conversion may keep the number of images of the graph


class NotConverted(Exception):
    """Raised if a model cannot be converted to torch. The message is the reason."""


def converted(model: Any) -> nn.Module:
    """Convert an ONNX model, which is changed in place, to a network. Raises NotConverted."""
    try:
        _prepare(model)
        network: nn.Module = _onnx2torch().convert(model).eval()
    except RbError:
        raise
    except Exception as error:  # an operator that onnx2torch does not know, or its own code
        raise NotConverted(_brief(error)) from None
    for layer in network.modules():
        if isinstance(layer, nn.LayerNorm):  # it is () where the shape of the input is not known
            layer.normalized_shape = tuple(layer.weight.shape)
    return network


def check_same(network: nn.Module, images: Tensor, expected: Tensor) -> None:
    """Raise NotConverted if the logits (N, K) differ from the expected ones or have no gradients."""
    try:
        with torch.no_grad():
            whole, few = network(images), network(images[:_FEW])
        leaf = images[:_FEW].clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(network(leaf).square().sum(), leaf)
    except Exception as error:
        raise NotConverted(_brief(error)) from None
    if whole.shape != expected.shape or few.shape != expected[:_FEW].shape:
        raise NotConverted(f"onnx2torch returns outputs of a different shape, {tuple(whole.shape)}")
    difference = max(float((a - b).abs().max()) for a, b in ((whole, expected), (few, expected[:_FEW])))
    span = float(expected.max() - expected.min())
    if not difference <= _NEAR * span:
        raise NotConverted(f"onnx2torch changes its logits by {difference:.2g} in a range of {span:.2g}")
    if not gradient.any():
        raise NotConverted("its gradients are zero")


def _prepare(model: Any) -> None:
    """Change a graph for onnx2torch: constants become initializers, and operators get an older version."""
    from onnx import helper, numpy_helper

    graph = model.graph
    known = {one.name: one for one in graph.initializer}
    for node in list(graph.node):
        attributes = {one.name: one for one in node.attribute}
        value = attributes["value"].t if node.op_type == "Constant" and "value" in attributes else None
        value = known.get(node.input[0]) if node.op_type == "Identity" else value
        if value is not None:
            known[node.output[0]] = added = graph.initializer.add()
            added.CopyFrom(value)
            added.name = node.output[0]
            graph.node.remove(node)
        elif node.op_type.startswith("Reduce") and node.op_type != "ReduceSum" and len(node.input) == 2:
            axes = numpy_helper.to_array(known[node.input.pop()]).tolist()
            node.attribute.append(helper.make_attribute("axes", axes))
        for one in (attributes[name] for name in _LATER if name in attributes):
            node.attribute.remove(one)
    for one in model.opset_import:
        one.version = min(one.version, _OPSET) if one.domain == "" else one.version


@functools.cache
def _onnx2torch() -> Any:
    importlib.import_module("rbtools.models.torchvision_import")  # onnx2torch imports torchvision
    onnx2torch = package("onnx2torch")
    registry = importlib.import_module("onnx2torch.node_converters.registry")
    common = importlib.import_module("onnx2torch.utils.common")

    slices: Any = importlib.import_module("onnx2torch.node_converters.slice")
    of_lists = slices._get_slices  # torch warns of an index that is a list, in every pass
    slices._get_slices = lambda *given: tuple(map(tuple, of_lists(*given)))

    @registry.add_converter(operation_type="Gelu", version=_OPSET)  # which it lacks
    def gelu(node: Any, _: Any) -> Any:
        layer = nn.GELU(node.attributes.get("approximate", "none"))
        return common.OperationConverterResult(layer, common.onnx_mapping_from_node(node))

    return onnx2torch


def package(name: str) -> Any:
    """Import a package of the extra `onnx`. Raises RbError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise RbError(
            f"ONNX models need the package {name}, which is not installed. Install it with"
            " pip install 'rbtools[onnx]'."
        ) from None


def _brief(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"onnx2torch fails with {type(error).__name__}: {shown(first, 120)}".rstrip(".: ")
