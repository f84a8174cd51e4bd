"""The convolutional networks of the zoo, in the namings of the repositories that their weights come from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rbtools.errors import RbError
from rbtools.models.families.base import Inferred, State, head_of, numbered, weight
from rbtools.spaces.zoo import FORMS, PreActResNetForm, ResNetForm, SimpleCNNForm, VGGForm

STEM_OF_KERNEL = {3: "cifar", 7: "imagenet"}


def resnet(state: State, metadata: Mapping[str, Any]) -> Inferred | None:
    """A ResNet in kuangliu's or torchvision's naming, with either stem. Raises RbError for an odd stem."""
    stem, head = weight(state, "conv1.weight", 4), head_of(state)
    first, middle = (weight(state, f"layer1.0.{name}.weight", 4) for name in ("conv1", "conv2"))
    # Without bn1 behind the stem it is a pre-activation ResNet, another function.
    if head is None or stem is None or first is None or middle is None or "bn1.weight" not in state:
        return None
    if "layer1.0.fc2.bias" in state or "layer1.0.se.fc2.bias" in state:  # squeeze-and-excitation
        return None
    if len(stem) != 64 or len(first) != 64:
        return None
    bottleneck = "layer1.0.conv3.weight" in state
    name = next((n for n, form in FORMS.items() if form == ResNetForm(_blocks(state), bottleneck)), None)
    # Where the 3x3 convolutions see only some channels each, it is a ResNeXt.
    if name is None or (bottleneck and middle.shape[0] != middle.shape[1]):
        return None
    kernel = stem.shape[-1]
    if kernel not in STEM_OF_KERNEL:
        raise RbError(
            f"The checkpoint is a {name} whose first convolution is {kernel}x{kernel}. Known are the forms"
            " with 3x3 (small images) and 7x7 (224x224 images)."
        )
    arch = {"space": "zoo", "name": name, "stem": STEM_OF_KERNEL[kernel]}
    if pooled_windows(state) > 1:
        arch["pool"] = "4x4"
    return Inferred(arch, head.shape[0], stem.shape[1])


def pooled_windows(state: State) -> int:
    """How many windows of 4x4 a side has before a ResNet's linear layer; 1 where it pools globally."""
    head = head_of(state)
    channels = 2048 if "layer1.0.conv3.weight" in state else 512
    side = 1 if head is None else math.isqrt(head.shape[1] // channels)
    return side if head is not None and side * side * channels == head.shape[1] else 1


def _blocks(state: State) -> tuple[int, ...]:
    places = numbered(state, r"layer(\d)\.(\d+)\.conv2\.weight")
    return tuple(sum(stage == wanted for stage, _ in places) for wanted in (1, 2, 3, 4))


def preactresnet(state: State, metadata: Mapping[str, Any]) -> Inferred | None:
    """A pre-activation ResNet: BatchNorm stands before the first convolution of a block."""
    stem, head = weight(state, "conv1.weight", 4), head_of(state)
    first = weight(state, "layer1.0.bn1.weight", 1)
    if head is None or stem is None or first is None or "bn1.weight" in state:
        return None
    form = PreActResNetForm(_blocks(state), final_norm="bn.weight" in state)
    name = next((name for name, one in FORMS.items() if one == form), None)
    if name is None or stem.shape[0] != 64 or len(first) != 64 or "layer2.0.shortcut.1.weight" in state:
        return None
    return Inferred({"space": "zoo", "name": name}, head.shape[0], stem.shape[1])


def wideresnet(state: State, metadata: Mapping[str, Any]) -> Inferred | None:
    """A Wide ResNet in the naming of TRADES and MART."""
    stem, head = weight(state, "conv1.weight", 4), head_of(state)
    first = weight(state, "block1.layer.0.conv1.weight", 4)
    if head is None or stem is None or first is None or len(stem) != 16 or len(first) % 16:
        return None
    if "block1.layer.0.activation.alpha" in state or "fc.bias" not in state:  # another activation, or head
        return None
    count = len(numbered(state, r"block1\.layer\.(\d+)()\.conv1\.weight"))
    name = f"wrn-{6 * count + 4}-{first.shape[0] // 16}"
    return Inferred({"space": "zoo", "name": name}, head.shape[0], stem.shape[1])


def vgg(state: State, metadata: Mapping[str, Any]) -> Inferred | None:
    """A VGG with BatchNorm and one linear layer, in kuangliu's naming."""
    stem, head = weight(state, "features.0.weight", 4), head_of(state)
    if stem is None or head is None or "features.1.running_mean" not in state:
        return None
    convs = {key: value for key, value in state.items() if value.ndim == 4}
    for name, form in FORMS.items():
        if isinstance(form, VGGForm) and _widths(form) == {key: len(value) for key, value in convs.items()}:
            return Inferred({"space": "zoo", "name": name}, head.shape[0], stem.shape[1])
    return None


def _widths(form: VGGForm) -> dict[str, int]:
    """The convolutions by name: three modules each (BatchNorm and ReLU follow), a pooling after a stage."""
    widths, place = {}, 0
    for count, width in zip(form.convs, form.widths, strict=True):
        for _ in range(count):
            widths[f"features.{place}.weight"] = width
            place += 3
        place += 1
    return widths


def simplecnn(state: State, metadata: Mapping[str, Any]) -> Inferred | None:
    """MNISTNet of advbench, which is PyTorch's own MNIST example."""
    modules = ("conv1", "conv2", "fc1", "fc2")
    if set(state) != {f"{name}.{kind}" for name in modules for kind in ("weight", "bias")}:
        return None
    shapes = [tuple(state[f"{name}.weight"].shape) for name in modules]
    if any(len(shape) != rank for shape, rank in zip(shapes, (4, 4, 2, 2), strict=True)):
        return None
    places = shapes[2][1] // 64
    if (shapes[0][0], shapes[1][:2], shapes[2][0]) != (32, (64, 32), 128) or places > SimpleCNNForm.side**2:
        return None
    return Inferred({"space": "zoo", "name": "simplecnn"}, shapes[3][0], shapes[0][1])
