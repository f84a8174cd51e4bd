"""Families of networks, each recognised by the names and shapes of its tensors.

A new family is one function `(state, metadata) -> Inferred | None` and one line in `FAMILIES`. It gives None
for a state of another family, and raises RbError where no network of it fits, `Ambiguous` where several do.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools.errors import RbError
from rbtools.registry import Registry
from rbtools.spaces import nasbench201 as nb201
from rbtools.spaces.nasbench201 import CONV1, CONV3, EDGES, NONE, POOL, SKIP
from rbtools.spaces.zoo import FORMS, PreActResNetForm, ResNetForm, SimpleCNNForm, VGGForm, ViT

if TYPE_CHECKING:
    from torch import Tensor

FAMILIES = Registry(
    "family of checkpoints",
    {
        "NAS-Bench-201 (stem, cells, lastact, classifier)": "rbtools.models.families:nasbench201",
        "ResNet (conv1, bn1, layer1 to layer4, linear or fc)": "rbtools.models.families:resnet",
        "PreActResNet (conv1, layer1 to layer4, linear)": "rbtools.models.families:preactresnet",
        "Wide ResNet (conv1, block1 to block3, bn1, fc)": "rbtools.models.families:wideresnet",
        "VGG with one linear layer (features, classifier)": "rbtools.models.families:vgg",
        "the four-layer network for MNIST (conv1, conv2, fc1, fc2)": ("rbtools.models.families:simplecnn"),
        "vision transformers in torchvision's or timm's naming": "rbtools.models.families:vit",
    },
    group="checkpoint-families",
    closed=True,
)

LONGEST_NAME = 200  # characters of a tensor's name; longer names are not searched for numbers
# where the options of training scripts name the network
NAME_KEYS = ("model", "model_name", "arch", "architecture")
State = Mapping[str, "Tensor"]
Seen = tuple[str, "Tensor", "Tensor"]  # a name, the weights of the last layer and of the first convolution


@dataclass(frozen=True)
class Inferred:
    """A network inferred from weights: an architecture record, the numbers of classes and image channels."""

    arch: dict[str, Any]
    classes: int
    in_channels: int


class Ambiguous(RbError):
    """Several networks have these weights: all are in `candidates`, the message names some."""

    def __init__(self, message: str, candidates: list[Inferred]) -> None:
        super().__init__(message)
        self.candidates = candidates


# Names of the last layer, by itself or inside a Sequential.
HEAD = re.compile(r"(fc|linear|classifier|head|heads|last_linear|logits)(\.(\d+|head|fc))?\.weight")


def weight(state: State, name: str, rank: int) -> Tensor | None:
    """The tensor of that name if it has that number of dimensions and is not empty, else None."""
    tensor = state.get(name)
    return tensor if tensor is not None and tensor.ndim == rank and tensor.numel() else None


def head_key(state: State) -> str | None:
    """The name of the last layer's weights if only one tensor qualifies, else None."""
    names = [key for key, value in state.items() if value.ndim == 2 and value.numel() and HEAD.fullmatch(key)]
    return names[0] if len(names) == 1 else None


def head_of(state: State) -> Tensor | None:
    """The last layer's weights (classes, features) if only one tensor qualifies, else None."""
    key = head_key(state)
    return None if key is None else state[key]


def noted_names(metadata: Mapping[str, Any]) -> list[str]:
    """The names of networks in the options that training scripts save beside the weights, as timm's does
    (`args.model`), without the tag of timm's weights.
    """
    options = [metadata, *(metadata.get(place) for place in ("args", "hyper_parameters", "config"))]
    names = [place.get(key) for place in options if isinstance(place, Mapping) for key in NAME_KEYS]
    return [name.partition(".")[0] for name in names if isinstance(name, str)]


def numbered(state: State, pattern: str) -> list[tuple[int, int]]:
    """The two numbers in each name that the pattern matches; 0 for an empty second one."""
    matches = (re.fullmatch(pattern, key) for key in state if len(key) < LONGEST_NAME)
    return [(int(match[1]), int(match[2] or 0)) for match in matches if match]


# --- NAS-Bench-201: only convolutions have weights, so none, skip_connect and pooling look the same -------

MOST_CELLS = 100  # Cells of a stage; published networks have 5. Cells without weights cannot be counted.


def nasbench201(state: State, metadata: Mapping[str, Any]) -> Inferred | None:
    """The network; an architecture string in the metadata decides between cells with the same weights."""
    sizes = skeleton(state)
    if not sizes:
        return None
    cells, channels = sizes["cells"], sizes["channels"]
    ops = _shared_ops(state, [i for i in range(3 * cells + 2) if i not in (cells, 2 * cells + 1)])
    candidates = list(itertools.product(*((op,) if op else (NONE, SKIP, POOL) for op in ops)))
    named: set[tuple[int, ...]] = set()
    for text in _texts(metadata):
        with contextlib.suppress(RbError):
            named |= {nb201.parse(text)} & set(candidates)
    if len(named) == 1:
        candidates = list(named)
    classes, in_channels = state["classifier.weight"].shape[0], state["stem.0.weight"].shape[1]
    inferred = []
    for cell in candidates:
        described = nb201.arch(
            nb201.index_of(nb201.to_string(cell)), channels=channels, cells=cells, classes=classes
        )
        arch = {key: described[key] for key in ("space", "name", "index", "str", "channels", "cells")}
        inferred.append(Inferred(arch, classes, in_channels))
    if len(inferred) > 1:
        names = [str(one.arch["name"]) for one in inferred]
        some = ", ".join(names[:9]) + (", ..." if len(names) > 9 else "")
        raise Ambiguous(
            f"The checkpoint is a NAS-Bench-201 network ({channels} channels, cells {cells},"
            f" {classes} classes), but {_open_edges(ops)}, so {len(inferred)} architectures fit:"
            f" {some}. Say which one it is with --arch (its name, index or string).",
            inferred,
        )
    return inferred[0]


def skeleton(state: State) -> dict[str, int]:
    """The `channels` and `cells` of a NAS-Bench-201 network; empty for any other state."""
    stem, head = weight(state, "stem.0.weight", 4), weight(state, "classifier.weight", 2)
    if stem is None or head is None or "lastact.0.weight" not in state:
        return {}
    reductions = sorted(i for i, _ in numbered(state, r"cells\.(\d+)()\.conv_a\.op\.1\.weight"))
    if len(reductions) != 2 or reductions[1] != 2 * reductions[0] + 1:
        return {}
    if not 1 <= reductions[0] <= MOST_CELLS:
        return {}
    return {"channels": len(stem), "cells": reductions[0]}


def _shared_ops(state: State, places: list[int]) -> list[int]:
    """For each edge the convolution that every cell has there, or 0 (no weights)."""
    kernels: dict[int, set[int]] = {edge: set() for edge in range(len(EDGES))}
    for place in places:
        for edge in kernels:
            name = f"cells.{place}.layers.{edge}.op.1.weight"
            tensor = weight(state, name, 4)
            kernels[edge].add(tensor.shape[-1] if tensor is not None else -1 if name in state else 0)
    if any(len(sizes) > 1 or not sizes <= {0, 1, 3} for sizes in kernels.values()):
        raise RbError(
            "The checkpoint looks like a NAS-Bench-201 network, but its cells differ from each other."
            " Expected the same operations in every cell: check that the file is whole."
        )
    return [{0: 0, 1: CONV1, 3: CONV3}[sizes.pop()] for sizes in kernels.values()]


def _open_edges(ops: list[int]) -> str:
    names = [f"{source}->{target}" for (source, target), op in zip(EDGES, ops, strict=True) if not op]
    edges, have = (f"edge {names[0]}", "has") if len(names) == 1 else (f"edges {', '.join(names)}", "have")
    return f"its {edges} {have} no weights and may be none, skip_connect or avg_pool_3x3"


def _texts(value: object, depth: int = 4) -> Iterator[str]:
    """The architecture strings anywhere in the metadata."""
    if isinstance(value, str) and value.startswith("|"):
        yield value
    elif depth and isinstance(value, Mapping):
        yield from itertools.chain.from_iterable(_texts(item, depth - 1) for item in value.values())
    elif depth and isinstance(value, (list, tuple)):
        yield from itertools.chain.from_iterable(_texts(item, depth - 1) for item in value)


# --- the zoo, in the namings of the repositories that its weights come from -------------------------------

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
    # a network with another activation or head
    if "block1.layer.0.activation.alpha" in state or "fc.bias" not in state:
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


# --- vision transformers of the zoo, in torchvision's naming or timm's (DeiT's) ---------------------------

# The names that identify it: patches, positions, head, first linear layer of a block; a pattern of the
# blocks.
TORCHVISION = (
    "conv_proj.weight",
    "encoder.pos_embedding",
    "heads.head.weight",
    "encoder.layers.encoder_layer_0.mlp.0.weight",
    r"encoder\.layers\.encoder_layer_(\d+)()\.ln_1\.weight",
)
TIMM = (
    "patch_embed.proj.weight",
    "pos_embed",
    "head.weight",
    "blocks.0.mlp.fc1.weight",
    r"blocks\.(\d+)()\.norm1\.weight",
)
PER_BLOCK, OUTSIDE = 12, 8  # tensors


def vit(state: State, metadata: Mapping[str, Any]) -> Inferred | None:
    """A transformer of the zoo's widths and depths; `patch` and `side` where they are not 16 and 224.

    The number of heads leaves no trace: 64 channels each, as in all published ones of these widths.
    """
    for patches, positions, head, first, block in (TORCHVISION, TIMM):
        conv, places = weight(state, patches, 4), weight(state, positions, 3)
        last, inner = weight(state, head, 2), weight(state, first, 2)
        if conv is None or places is None or last is None or inner is None:
            continue
        width, in_channels, patch = conv.shape[:3]
        depth = len(numbered(state, block))
        name = next((n for n, form in FORMS.items() if form == ViT(width, depth)), None)
        grid = math.isqrt(places.shape[1] - 1)
        whole = grid * grid + 1 == places.shape[1] and len(inner) == 4 * width
        if name is None or not whole or len(state) != PER_BLOCK * depth + OUTSIDE:
            return None
        arch: dict[str, Any] = {"space": "zoo", "name": name}
        if (patch, grid * patch) != (16, 224):
            arch |= {"patch": patch, "side": grid * patch}
        return Inferred(arch, len(last), in_channels)
    return None
