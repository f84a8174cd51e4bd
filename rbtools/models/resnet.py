"""ResNet, pre-activation ResNet and Wide ResNet for images of any size: average pooling adapts to the image.

The tensor names of ResNet (He et al., CVPR 2016) are those of kuangliu/pytorch-cifar. The stem for small
images is a 3x3 convolution with stride 1 and without pooling. The paper's stem, for 224x224 images, is a 7x7
convolution with stride 2 and max-pooling. The stem of huyvnphan/PyTorch_CIFAR10 is the 3x3 convolution with
this max-pooling. For 32x32 images the average pooling equals the fixed 4x4 pooling, which is also available
for larger images (`windows`).

The tensor names of the pre-activation ResNet (He et al., ECCV 2016) are those of locuslab/robust_overfitting.
The shortcut convolution of a block has no BatchNorm. It follows the block's first BatchNorm and ReLU, but in
locuslab/fast_adversarial and derived networks it is applied to the block's input. The tensor names of Wide
ResNet (Zagoruyko and Komodakis, 2016) are those of the WideResNet of TRADES and MART.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor, nn

from rbtools.spaces import zoo

if TYPE_CHECKING:
    from rbtools.models import Shape

Activation = Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, Activation] = {"relu": F.relu, "silu": F.silu, "gelu": F.gelu}


class BasicBlock(nn.Module):
    """A block of two 3x3 convolutions and a shortcut: (N, C, H, W) -> (N, C', H/stride, W/stride)."""

    expansion = 1

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.activation: Activation = F.relu
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.shortcut = projection(channels_in, channels_out, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.activation(self.bn1(self.conv1(x)))))
        return self.activation(out + self.shortcut(x))


class Bottleneck(nn.Module):
    """A block of 1x1, 3x3 and 1x1 convolutions: (N, C, H, W) -> (N, 4 C', H/stride, W/stride)."""

    expansion = 4

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.activation: Activation = F.relu
        channels_out = self.expansion * width
        self.conv1 = nn.Conv2d(channels_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, channels_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels_out)
        self.shortcut = projection(channels_in, channels_out, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.activation(self.bn1(self.conv1(x)))
        out = self.activation(self.bn2(self.conv2(out)))
        return self.activation(self.bn3(self.conv3(out)) + self.shortcut(x))


def projection(channels_in: int, channels_out: int, stride: int, affine: bool = True) -> nn.Sequential:
    """Returns the identity if a block keeps all sizes, and otherwise a 1x1 convolution with BatchNorm."""
    if stride == 1 and channels_in == channels_out:
        return nn.Sequential()
    convolution = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(channels_out, affine=affine))


def stage(
    block: Callable[..., nn.Module], count: int, channels_in: int, channels: int, stride: int, *options: Any
) -> nn.Sequential:
    """Returns `count` blocks, of which only the first has the given stride."""
    blocks = [block(channels_in, channels, stride, *options)]
    inputs = channels * getattr(block, "expansion", 1)
    blocks += [block(inputs, channels, 1, *options) for _ in range(count - 1)]
    return nn.Sequential(*blocks)


class FourStages(nn.Module):
    """Four stages of blocks. Each later stage has twice the channels and half the resolution."""

    layer1: nn.Sequential
    layer2: nn.Sequential
    layer3: nn.Sequential
    layer4: nn.Sequential

    def add_stages(
        self, block: Callable[..., nn.Module], blocks: Sequence[int], width: int, *options: Any
    ) -> int:
        """Add the stages. Returns the number of channels of the last stage."""
        channels, expansion = width, getattr(block, "expansion", 1)
        for number, count in enumerate(blocks):
            sizes = (count, channels, width << number, 2 if number else 1)
            setattr(self, f"layer{number + 1}", stage(block, *sizes, *options))
            channels = (width << number) * expansion
        return channels

    def through_stages(self, x: Tensor) -> Tensor:
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))


class ResNet(FourStages):
    """Maps images (N, in_channels, H, W) to logits (N, classes).

    `blocks` are the numbers of blocks in the four stages, such as (2, 2, 2, 2) for ResNet-18. `width` is the
    number of channels in the first stage. `stem` is "cifar", "imagenet" or "cifar-maxpool". If `windows` is
    None, the network pools over the complete image. Otherwise `windows` is the required number of 4x4 pooling
    windows.
    """

    def __init__(
        self,
        blocks: Sequence[int],
        *,
        classes: int,
        in_channels: int = 3,
        width: int = 64,
        block: type[BasicBlock | Bottleneck] = BasicBlock,
        stem: str = "cifar",
        windows: int | None = None,
    ) -> None:
        super().__init__()
        self.activation: Activation = F.relu
        kernel, stride = (7, 2) if stem == "imagenet" else (3, 1)
        self.conv1 = nn.Conv2d(in_channels, width, kernel, stride, padding=kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.Identity() if stem == "cifar" else nn.MaxPool2d(3, 2, padding=1)
        channels = self.add_stages(block, blocks, width)
        self.windows = windows
        self.linear = nn.Linear(channels * (windows or 1), classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.through_stages(self.maxpool(self.activation(self.bn1(self.conv1(images)))))
        pooled = x.mean((2, 3)) if self.windows is None else F.avg_pool2d(x, 4).flatten(1)
        return self.linear(pooled)


def set_traceless(network: nn.Module, fields: Mapping[str, Any]) -> None:
    """Set the activation of all blocks and BatchNorm's epsilon in place, if the record has these fields."""
    for module in network.modules():
        if "activation" in fields and hasattr(module, "activation"):
            setattr(module, "activation", ACTIVATIONS[fields["activation"]])  # noqa: B010
        if "eps" in fields and isinstance(module, nn.BatchNorm2d):
            module.eps = float(fields["eps"])


def resnet(form: zoo.ResNetForm, fields: Mapping[str, Any], *, classes: int, shape: Shape) -> ResNet:
    """Build a ResNet. ResNet-18 has 11,173,962 parameters for 32x32 images and 10 classes."""
    block = Bottleneck if form.bottleneck else BasicBlock
    windows = form.windows(fields, shape) if fields.get("pool") == "4x4" else None
    return ResNet(
        form.blocks, classes=classes, in_channels=shape[0], block=block, stem=fields["stem"], windows=windows
    )


class PreActivated(nn.Module):
    """Applies BatchNorm, ReLU and a 3x3 convolution twice: (N, C, H, W) -> (N, C', H/stride, W/stride)."""

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        stride: int,
        activation: Activation = F.relu,
        affine: bool = True,
    ) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.bn1 = nn.BatchNorm2d(channels_in, affine=affine)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out, affine=affine)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)

    def convolved(self, active: Tensor) -> Tensor:
        return self.conv2(self.activation(self.bn2(self.conv1(active))))


class PreActBlock(PreActivated):
    """A block whose shortcut convolution is applied to the activated input or to the block's input."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, shortcut: str) -> None:
        super().__init__(channels_in, channels_out, stride)
        self.of_input = shortcut == "input"
        self.shortcut: nn.Sequential | None = None
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels_in, channels_out, 1, stride, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        active = self.activation(self.bn1(x))
        beside = x if self.shortcut is None else self.shortcut(x if self.of_input else active)
        return self.convolved(active) + beside


class PreActResNet(FourStages):
    """Maps images (N, in_channels, H, W) to logits (N, classes).

    If `final_norm` is true, BatchNorm (`bn`) and ReLU follow the last block. Both layers are missing in
    kuangliu/pytorch-cifar. `shortcut` names the input of shortcut convolutions: "activation" or "input".
    """

    def __init__(
        self, blocks: Sequence[int], *, classes: int, in_channels: int, final_norm: bool, shortcut: str
    ) -> None:
        super().__init__()
        self.activation: Activation = F.relu
        self.conv1 = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
        channels = self.add_stages(PreActBlock, blocks, 64, shortcut)
        self.bn = nn.BatchNorm2d(channels) if final_norm else None
        self.linear = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.through_stages(self.conv1(images))
        if self.bn is not None:
            x = self.activation(self.bn(x))
        return self.linear(x.mean((2, 3)))


def preactresnet(
    form: zoo.PreActResNetForm, fields: Mapping[str, Any], *, classes: int, shape: Shape
) -> PreActResNet:
    """Build a PreActResNet. With the final BatchNorm, it has 11,172,170 parameters for 10 classes."""
    return PreActResNet(
        form.blocks,
        classes=classes,
        in_channels=shape[0],
        final_norm=form.final_norm,
        shortcut=fields.get("shortcut", "activation"),
    )


class WideBlock(PreActivated):
    """A block whose shortcut convolution is applied to the activated input."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__(channels_in, channels_out, stride)
        self.convShortcut: nn.Conv2d | None = None
        if channels_in != channels_out:
            self.convShortcut = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = self.activation(self.bn1(x))
        beside = x if self.convShortcut is None else self.convShortcut(active)
        return self.convolved(active) + beside


class WideResNet(nn.Module):
    """Maps images (N, in_channels, H, W) to logits (N, classes).

    `depth` is 6n+4, where n is the number of blocks in each of the three stages. The widths of the stages are
    16, 32 and 64 times `widen`. There is no dropout. For 32x32 images, the average pooling is the usual 8x8
    pooling.
    """

    def __init__(self, depth: int, widen: int, *, classes: int, in_channels: int) -> None:
        super().__init__()
        count, widths = (depth - 4) // 6, [16 * widen, 32 * widen, 64 * widen]
        self.activation: Activation = F.relu
        self.conv1 = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        self.block1, self.block2, self.block3 = (
            nn.Sequential(OrderedDict(layer=stage(WideBlock, count, *sizes)))
            for sizes in zip((16, *widths), widths, (1, 2, 2), strict=False)
        )
        self.bn1 = nn.BatchNorm2d(widths[2])
        self.fc = nn.Linear(widths[2], classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.block3(self.block2(self.block1(self.conv1(images))))
        return self.fc(self.activation(self.bn1(x)).mean((2, 3)))


def wideresnet(
    form: zoo.WideResNetForm, fields: Mapping[str, Any], *, classes: int, shape: Shape
) -> WideResNet:
    """Build a WideResNet. WRN-28-10 has 36,479,194 parameters for 10 classes."""
    return WideResNet(form.depth, form.widen, classes=classes, in_channels=shape[0])
