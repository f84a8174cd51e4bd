"""Networks of chenyaofo/pytorch-cifar-models: `chenyaofo/resnet20` to `resnet110`, `chenyaofo/vgg11_bn`,
`chenyaofo/mobilenetv2_x0_5`, `chenyaofo/repvgg_a0` ...

The ResNets are those of the paper for CIFAR-10 (6n + 2 layers, 16 to 64 channels), with convolutions in their
shortcuts; the VGGs have three linear layers. They are for 32x32 images. MobileNetV2 and RepVGG-A2 have `stem`
"cifar", without the first strides, or "imagenet" with them, as in torchvision's and RepVGG's own code; the
smaller RepVGGs have other tensors in that code.
MobileNetV2 x1.0 and ShuffleNetV2 are `torchvision:` networks with `stem` "cifar".
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from rbtools.models import Shape
from rbtools.models.families import Seen, State, numbered, weight
from rbtools.models.resnet import BasicBlock, stage
from rbtools.zoo import libraries

MOBILE = {"mobilenetv2_x0_5": 0.5, "mobilenetv2_x0_75": 0.75, "mobilenetv2_x1_4": 1.4}
REPVGG = {  # channels of the stages; the stem has at most 64
    "repvgg_a0": (48, 96, 192, 1280),
    "repvgg_a1": (64, 128, 256, 1280),
    "repvgg_a2": (96, 192, 384, 1408),
}
NAMES = rf"chenyaofo/(resnet(?P<depth>\d+)|vgg(?P<vgg>11|13|16|19)_bn|{'|'.join((*MOBILE, *REPVGG))})"
EXAMPLES = tuple(f"chenyaofo/{name}" for name in ("resnet20", "vgg16_bn", *MOBILE, *REPVGG))
FORMS = ("cifar", "imagenet")
WITH_STEMS = tuple(f"chenyaofo/{name}" for name in (*MOBILE, "repvgg_a2"))
CONVOLUTIONS = {"11": (1, 1, 2, 2, 2), "13": (2, 2, 2, 2, 2), "16": (2, 2, 3, 3, 3), "19": (2, 2, 4, 4, 4)}


class CifarResNet(nn.Module):
    """Images (N, in_channels, H, W) -> logits (N, classes); three stages of `count` blocks."""

    def __init__(self, count: int, *, classes: int, in_channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        for number, sizes in enumerate(((16, 16, 1), (16, 32, 2), (32, 64, 2)), 1):
            setattr(self, f"layer{number}", stage(BasicBlock, count, *sizes))
        self.fc = nn.Linear(64, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(images)))
        for number in (1, 2, 3):
            x = getattr(self, f"layer{number}")(x)
        return self.fc(x.mean((2, 3)))


class ThreeLayerVGG(nn.Module):
    """Images (N, in_channels, 32, 32) -> logits (N, classes)."""

    def __init__(
        self, convolutions: tuple[int, ...], *, classes: int, in_channels: int = 3, hidden: int = 512
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for count, width in zip(convolutions, (64, 128, 256, 512, 512), strict=True):
            for _ in range(count):
                layers += [nn.Conv2d(in_channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
                in_channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        first = (nn.Linear(512, hidden), nn.ReLU(), nn.Dropout())
        second = (nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout())
        self.classifier = nn.Sequential(*first, *second, nn.Linear(hidden, classes))

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images).mean((2, 3)))


class RepVGGBlock(nn.Module):
    """3x3 and 1x1 convolutions beside each other, and BatchNorm of the input where its shape stays."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        same = stride == 1 and inputs == outputs
        self.rbr_identity = nn.BatchNorm2d(inputs) if same else None
        self.rbr_dense, self.rbr_1x1 = (
            nn.Sequential(
                OrderedDict(
                    conv=nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
                    bn=nn.BatchNorm2d(outputs),
                )
            )
            for kernel in (3, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.rbr_dense(x) + self.rbr_1x1(x)
        return F.relu(out if self.rbr_identity is None else out + self.rbr_identity(x))


class RepVGG(nn.Module):
    """Images (N, in_channels, H, W) -> logits (N, classes) (Ding et al., CVPR 2021)."""

    def __init__(self, widths: Sequence[int], *, classes: int, in_channels: int, first_stride: int) -> None:
        super().__init__()
        first = min(64, widths[0])
        self.stage0 = RepVGGBlock(in_channels, first, first_stride)
        stages = zip((2, 4, 14, 1), (first, *widths), widths, (first_stride, 2, 2, 2), strict=False)
        for number, sizes in enumerate(stages, 1):
            setattr(self, f"stage{number}", stage(RepVGGBlock, *sizes))
        self.linear = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        x = images
        for number in range(5):
            x = getattr(self, f"stage{number}")(x)
        return self.linear(x.mean((2, 3)))


def variants(name: str) -> tuple[dict[str, str], ...]:
    """Strides leave no trace in names and shapes."""
    return tuple({"stem": stem} for stem in FORMS) if name in WITH_STEMS else ()


def build(match: re.Match[str], fields: Mapping[str, Any], classes: int, shape: Shape) -> nn.Module:
    """The network of a name."""
    name, small = match[0].partition("/")[2], fields.get("stem", FORMS[0]) == FORMS[0]
    if name in REPVGG:
        stride = 1 if small else 2
        return RepVGG(REPVGG[name], classes=classes, in_channels=shape[0], first_stride=stride)
    if name in MOBILE:
        from rbtools.models.torchvision_import import torchvision

        network: nn.Module = torchvision.models.MobileNetV2(classes, MOBILE[name])
        if small:
            libraries.without_first_strides(network)
        libraries.let_in(network, "features.0.0", shape[0])
        return network
    if match["vgg"]:
        return ThreeLayerVGG(CONVOLUTIONS[match["vgg"]], classes=classes, in_channels=shape[0])
    return CifarResNet((int(match["depth"]) - 2) // 6, classes=classes, in_channels=shape[0])


TELLS = {"mobilenetv2": "features.18.0.weight", "repvgg": "stage3.13.rbr_dense.conv.weight"}
HEADS = ("classifier.1.weight", "linear.weight")
STEMS = ("features.0.0.weight", "stage0.rbr_dense.conv.weight")


def infer(state: State) -> Seen | None:
    """A ResNet of three stages from 16 channels on, or a VGG with three linear layers of 512."""
    stem, head = weight(state, "features.0.weight", 4), weight(state, "classifier.6.weight", 2)
    if stem is not None and head is not None and head.shape[1] == 512 and "features.1.running_mean" in state:
        total = sum(value.ndim == 4 for value in state.values())
        name = next((name for name, convolutions in CONVOLUTIONS.items() if sum(convolutions) == total), None)
        return None if name is None else (f"chenyaofo/vgg{name}_bn", head, stem)
    stem, head = weight(state, "conv1.weight", 4), weight(state, "fc.weight", 2)
    if stem is None or head is None or len(stem) != 16 or "layer4.0.conv1.weight" in state:
        return None
    places = numbered(state, r"layer(\d)\.(\d+)\.conv2\.weight")
    counts = {sum(place == wanted for place, _ in places) for wanted in (1, 2, 3)}
    convolved = any(f"layer2.0.{name}.0.weight" in state for name in ("downsample", "shortcut"))
    if len(counts) != 1 or 0 in counts or not convolved:
        return None
    return f"chenyaofo/resnet{6 * counts.pop() + 2}", head, stem
