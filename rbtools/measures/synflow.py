"""SynFlow: the synaptic saliency of a network whose weights are replaced by their absolute values."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.lazy import nn, torch
from rbtools.measures import derivatives
from rbtools.measures.base import BatchResult, Measure, MeasureBatch


@dataclass(frozen=True, kw_only=True)
class SynFlow(Measure):
    """Sum over the weights of convolutions and linear layers of |weight * gradient of the summed logits|.

    As in Tanaka et al. 2020 (arXiv:2006.05467), all weights are replaced by their absolute values, BatchNorm
    is the identity, and the arithmetic is float64. The only input image is all ones (after the normalisation,
    if that is the model's first layer). No data are used.
    """

    name = "synflow"
    weights = "init"
    data = False

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        import copy

        from torch.func import functional_call, grad

        names = list(derivatives.layers(model).values())
        linear = copy.deepcopy(model).double()
        for module in linear.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.forward = lambda x: x  # type: ignore[method-assign,assignment]
        weights = {name: value.abs() for name, value in derivatives.weights_of(linear).items()}
        image = torch.ones_like(batch.images[:1], dtype=torch.float64)
        mean, std = getattr(linear, "mean", None), getattr(linear, "std", None)
        if isinstance(mean, torch.Tensor) and isinstance(std, torch.Tensor):
            image = mean + std * image
        with derivatives.differentiating():
            flow = grad(lambda values: functional_call(linear, {**weights, **values}, (image,)).sum())
            gradients = flow({name: weights[name] for name in names})
        return {"": sum(float((weights[name] * gradients[name]).abs().sum()) for name in names)}
