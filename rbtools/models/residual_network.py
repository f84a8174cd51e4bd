"""The networks of the spaces fcnn and rescnn (Wu et al., ICLR 2024, equations 1 and 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rbtools.models import Shape
from rbtools.spaces import space
from rbtools.spaces.residual import UNIT, Layers, outputs

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "leaky": F.leaky_relu,  # with slope 0.01
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "swish": F.silu,
}


class ResidualNetwork(nn.Module):
    """A network that maps images (N, C, H, W) to logits (N, classes).

    The network computes f_1 = s_1(W_1 x), f_l = s_l(W_l f_(l-1)) / L + a_l f_(l-1) and the logits W_L
    f_(L-1). W_l is a matrix, or, if the layers have filters, a convolution whose zero padding keeps the size.
    There are no biases. All weights are sampled from N(0, 1/m), where m is the width. For two classes, the
    logits are (0, f), where f is the scalar output of the paper. The cross-entropy of these logits is the
    paper's logistic loss log(1 + exp(-y f)), where y is 1 for class 1 and -1 for class 0. If `unit` is true,
    each image x is first scaled to Euclidean norm 1.
    """

    def __init__(self, layers: Layers, width: int, *, classes: int, shape: Shape, unit: bool) -> None:
        super().__init__()
        self.unit = unit
        channels, height, rest = shape
        self.forms, self.binary = layers, classes == 2
        inputs = channels if layers[0].filter else channels * height * rest
        modules: list[nn.Module] = []
        for layer in layers:
            size = layer.filter
            modules.append(
                nn.Conv2d(inputs, width, size, padding=size // 2, bias=False)
                if size
                else nn.Linear(inputs, width, bias=False)
            )
            inputs = width
        self.layers = nn.ModuleList(modules)
        inputs = width * height * rest if layers[0].filter else width
        self.last = nn.Linear(inputs, outputs(classes), bias=False)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=width**-0.5)

    def forward(self, images: Tensor) -> Tensor:
        if self.unit:
            images = F.normalize(images.flatten(1)).view_as(images)
        x = images if self.forms[0].filter else images.flatten(1)
        for number, (layer, form) in enumerate(zip(self.layers, self.forms, strict=True)):
            own = ACTIVATIONS[form.activation](layer(x))
            if number:
                own = own / (len(self.forms) + 1)
            x = own + x if form.skip else own
        logits: Tensor = self.last(x.flatten(1))
        return torch.cat([torch.zeros_like(logits), logits], dim=1) if self.binary else logits


def from_arch(arch: Mapping[str, Any], *, classes: int, shape: Shape) -> ResidualNetwork:
    residual_space: Any = space(arch["space"])
    sizes, layers = residual_space.of(arch)
    return ResidualNetwork(layers, sizes.width, classes=classes, shape=shape, unit=sizes.inputs == UNIT)
