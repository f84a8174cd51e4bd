"""Networks of huyvnphan/PyTorch_CIFAR10: `huyvnphan/vgg16_bn`, `densenet121`, `googlenet`, `inception_v3`.

They are torchvision's, with other first layers, for 32x32 images. Its ResNets are those of the zoo with
`stem` "cifar-maxpool", its MobileNetV2 is `torchvision:mobilenet_v2` with `stem` "cifar".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from rbtools.models import Shape
from rbtools.zoo.repositories.chenyaofo import CONVOLUTIONS, ThreeLayerVGG

DENSE = ("densenet121", "densenet161", "densenet169")
# The place of the first convolution, and modules that are left out.
INCEPTIONS = {
    "googlenet": ("conv1", ("maxpool1", "conv2", "conv3", "maxpool2")),
    "inception_v3": (
        "Conv2d_1a_3x3",
        ("Conv2d_2a_3x3", "Conv2d_2b_3x3", "maxpool1", "Conv2d_3b_1x1", "Conv2d_4a_3x3", "maxpool2"),
    ),
}
EXAMPLES = tuple(
    f"huyvnphan/{name}" for name in (*(f"vgg{depth}_bn" for depth in CONVOLUTIONS), *DENSE, *INCEPTIONS)
)
NAMES = "|".join(EXAMPLES)


def build(match: re.Match[str], fields: Mapping[str, Any], classes: int, shape: Shape) -> nn.Module:
    """The network of a name."""
    name = match[0].partition("/")[2]
    if name.startswith("vgg"):
        convolutions = CONVOLUTIONS[name.removeprefix("vgg").removesuffix("_bn")]
        return ThreeLayerVGG(convolutions, classes=classes, in_channels=shape[0], hidden=4096)
    from rbtools.models.torchvision_import import torchvision

    if name in DENSE:
        network: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=classes)
        features = network.get_submodule("features")
        width = features.get_submodule("norm0").get_parameter("weight").numel()
        features.add_module("conv0", nn.Conv2d(shape[0], width, 3, padding=1, bias=False))
        return network
    network = torchvision.models.get_model(
        name, weights=None, num_classes=classes, aux_logits=False, init_weights=False
    )
    place, left_out = INCEPTIONS[name]
    first = torchvision.models.inception.BasicConv2d(shape[0], 192, kernel_size=3, padding=1)
    for part in left_out:
        network.add_module(part, nn.Identity())
    network.add_module(place, first)
    for part in ("maxpool3", "maxpool4") if name == "googlenet" else ():
        network.add_module(part, nn.MaxPool2d(3, 2, 1))
    return network


TELLS = {
    "vgg": "classifier.6.weight",
    "densenet": "features.conv0.weight",
    "googlenet": "inception3a.branch1.conv.weight",
    "inception": "Mixed_7c.branch1x1.conv.weight",
}
HEADS = ("classifier.6.weight", "classifier.weight", "fc.weight")
STEMS = ("features.0.weight", "features.conv0.weight", "conv1.conv.weight", "Conv2d_1a_3x3.conv.weight")
