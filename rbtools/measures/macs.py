"""The size of a network: the number of its parameters and of multiply-accumulate operations for one image."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.lazy import Tensor, nn, torch
from rbtools.measures.base import BatchResult, Measure, MeasureBatch, watching


@dataclass(frozen=True, kw_only=True)
class Params(Measure):
    """Number of parameters of the network."""

    name = "params"
    weights = "none"
    data = False
    less_is_better = True

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        return {"": sum(parameter.numel() for parameter in model.parameters())}


@dataclass(frozen=True, kw_only=True)
class MACs(Measure):
    """Multiply-accumulate operations of the convolutions and linear layers that run for one image."""

    name = "macs"
    weights = "none"
    data = False
    less_is_better = True

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        return {"": count_macs(model, batch.images[:1])}


def count_macs(model: nn.Module, image: Tensor) -> int:
    """Multiply-accumulate operations of convolutions and linear layers for one image (1, C, H, W)."""
    macs = 0

    def add(module: nn.Module, inputs: object, output: Tensor) -> None:
        nonlocal macs
        weight = module.weight
        assert isinstance(weight, torch.Tensor)
        macs += output.numel() * weight[0].numel()  # weight[0]: the weights of one output

    kinds = (nn.modules.conv._ConvNd, nn.Linear)
    modules = (module for module in model.modules() if isinstance(module, kinds))
    with watching(modules, add), torch.no_grad():
        model(image)
    return macs
