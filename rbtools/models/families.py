"""Network families, which are recognised by the names and shapes of their tensors.

To add a family, add a function `(state, metadata) -> Inferred | None` and one line in `FAMILIES`. The
function returns None for the tensors of another family, and raises RbError if no network of the family fits,
or `Ambiguous` if several fit. It infers the possible sizes from a few shapes. The function `fits` then builds
the network and compares all names and shapes.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools.errors import RbError, shown
from rbtools.models import VARIANTS, Shape
from rbtools.models.cell_network import edges_to_compute
from rbtools.models.meta import shapes_of
from rbtools.models.tensor_names import HEAD, OPTIONAL, translation
from rbtools.registry import Registry
from rbtools.spaces import nasbench201 as nb201
from rbtools.spaces.nasbench201 import CONV1, CONV3, EDGES, NONE, POOL, SKIP
from rbtools.spaces.zoo import (
    FORMS,
    SHORTCUTS,
    STEMS,
    PreActResNetForm,
    ResNetForm,
    SimpleCNNForm,
    VGGForm,
    ViT,
)

if TYPE_CHECKING:
    from torch import Tensor

FAMILIES = Registry(
    "family of checkpoints",
    {
        "NAS-Bench-201": "rbtools.models.families:nasbench201",
        "the zoo": "rbtools.models.families:zoo",
    },
    group="checkpoint-families",
    closed=True,
)

LONGEST_NAME = 200  # characters of a tensor's name; longer names are not searched for numbers
# the options of training scripts that name the network
NAME_KEYS = ("model", "model_name", "arch", "architecture")
State = Mapping[str, "Tensor"]


@dataclass(frozen=True)
class Inferred:
    """A network that was inferred from weights: its architecture record and two sizes."""

    arch: dict[str, Any]
    classes: int
    in_channels: int


class Ambiguous(RbError):
    """Raised if several networks fit the weights. `candidates` contains all of them."""

    def __init__(self, message: str, candidates: list[Inferred]) -> None:
        super().__init__(message)
        self.candidates = candidates


# Tensors of diffusion models in the code of CompVis, OpenAI and diffusers.
DIFFUSION = re.compile(
    r"(model\.)?diffusion_model\..*|first_stage_model\..*|time_embed\.0\.weight|time_embedding\.linear_1\.weight"
)
CLIP = {"logit_scale", "visual.conv1.weight"}  # tensors of OpenAI's models
# Numbered linear layers: the one with the highest number gives the logits.
COUNTED = re.compile(r"(?:fc|linear|classifier\.)(\d{1,4})\.weight")
# Names of the first convolution.
FIRST = re.compile(
    r"(conv1|conv_proj|conv_2d|conv_1_3x3|init_conv|stem_conv|stem|features|patch_embed\.proj)"
    r"(\.stem)?(\.0){0,2}\.weight"
)


def infer(state: State, metadata: Mapping[str, Any] | None = None) -> Inferred:
    """Infer the network of a bare state dict (no prefixes, no normalisation).

    `metadata` is the remaining content of the file. An architecture string in the metadata decides between
    several networks that fit. Raises RbError if no family fits, and `Ambiguous` if several networks fit.
    """
    generator = next((key for key in state if DIFFUSION.fullmatch(key)), None)
    if generator is not None:
        raise RbError(
            f"The checkpoint is a diffusion model (it has the tensor {generator}), which returns images, not"
            " logits. Name the file of a classifier with --checkpoint FILE."
        )
    if state.keys() >= CLIP:
        raise RbError(
            "The checkpoint is a CLIP model, which needs the names of the classes to classify images. Write a"
            " Python function that builds such a classifier, and add --arch python:MODULE:FUNCTION."
        )
    for _, family in FAMILIES.loaded():
        inferred: Inferred | None = family(state, metadata or {})
        if inferred is not None:
            return inferred
    tops = list(dict.fromkeys(key.partition(".")[0] for key in state))
    named = ", ".join(map(shown, tops[:8])) + (", ..." if len(tops) > 8 else "")
    raise RbError(
        f"The checkpoint's network is not recognised: its {len(state)} tensors are named {named}."
        f" Recognised sources are {', '.join(FAMILIES)}. Say which network it is with --arch: a name"
        " of rb-arch --space zoo, torchvision:NAME, timm:NAME, repo:OWNER/NAME, or python:MODULE:FUNCTION."
    )


def weight(state: State, name: str, rank: int) -> Tensor | None:
    """Returns the tensor `name` if it has `rank` dimensions and is not empty, and None otherwise."""
    tensor = state.get(name)
    return tensor if tensor is not None and tensor.ndim == rank and tensor.numel() else None


def head_key(state: State) -> str | None:
    """Returns the name of the last layer's weights, or None if not exactly one name is possible."""
    names = [key for key, value in state.items() if value.numel() and HEAD.fullmatch(key)]
    linear = [key for key in names if state[key].ndim == 2 or state[key].shape[2:] == (1, 1)]
    return linear[0] if len(linear) == 1 else None


def head_of(state: State) -> Tensor | None:
    key = head_key(state)
    return None if key is None else state[key]


def classes_of(state: State) -> int | None:
    """Returns the number of logits, or None if no last layer has a common name."""
    head = head_of(state)
    if head is None:
        numbers = {key: int(match[1]) for key in state if (match := COUNTED.fullmatch(key))}
        linear = [key for key in numbers if weight(state, key, 2) is not None]
        head = state[max(linear, key=numbers.__getitem__)] if linear else None
    return None if head is None else len(head)


def in_channels_of(state: State) -> int | None:
    """Returns the number of image channels, or None if no first convolution has a common name."""
    names = (key for key in state if FIRST.fullmatch(key))
    return next((kernel.shape[1] for name in names if (kernel := weight(state, name, 4)) is not None), None)


def noted_names(metadata: Mapping[str, Any]) -> list[str]:
    """Returns network names from a training script's options, without the tags of timm's weights."""
    options = [metadata, *(metadata.get(place) for place in ("args", "hyper_parameters", "config"))]
    names = [place.get(key) for place in options if isinstance(place, Mapping) for key in NAME_KEYS]
    return [name.partition(".")[0] for name in names if isinstance(name, str)]


def numbered(state: State, pattern: str) -> list[int]:
    """Returns the number in each tensor name that the pattern matches, in ascending order."""
    matches = (re.fullmatch(pattern, key) for key in state if len(key) < LONGEST_NAME)
    return sorted(int(match[1]) for match in matches if match)


# --- NAS-Bench-201: only convolutions have weights, so none, skip_connect and pooling look the same -------

MOST_CELLS = 100  # cells of a stage; published networks have 5. Cells without weights cannot be counted.


def nasbench201(state: State, metadata: Mapping[str, Any]) -> Inferred | None:
    sizes = skeleton(state)
    if not sizes:
        return None
    cells, channels = sizes["cells"], sizes["channels"]
    kernels = [weight(state, f"cells.0.layers.{edge}.op.1.weight", 4) for edge in range(len(EDGES))]
    ops = [0 if one is None else {1: CONV1}.get(one.shape[-1], CONV3) for one in kernels]
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
        described = nb201.arch(nb201.index_by_ops()[cell], channels=channels, cells=cells, classes=classes)
        arch = {key: described[key] for key in ("space", "name", "index", "str", "channels", "cells")}
        inferred.append(Inferred(arch, classes, in_channels))
    if not fits(state, inferred[0].arch, classes, (in_channels, 32, 32)):
        return None
    if len(inferred) > 1:
        names = [str(one.arch["name"]) for one in inferred]
        some = ", ".join(names[:9]) + (", ..." if len(names) > 9 else "")
        raise Ambiguous(
            f"The checkpoint is a NAS-Bench-201 network ({channels} channels, cells {cells},"
            f" {classes} classes), but {_open_edges(ops)}, so {len(inferred)} architectures fit:"
            f" {some}. Name the right one with --arch (its name, index or string).",
            inferred,
        )
    return inferred[0]


def skeleton(state: State) -> dict[str, int]:
    """Returns the `channels` and `cells` of a NAS-Bench-201 network, and {} for other networks."""
    stem, head = weight(state, "stem.0.weight", 4), weight(state, "classifier.weight", 2)
    if stem is None or head is None or "lastact.0.weight" not in state:
        return {}
    reductions = numbered(state, r"cells\.(\d+)\.conv_a\.op\.1\.weight")
    if len(reductions) != 2 or reductions[1] != 2 * reductions[0] + 1:
        return {}
    if not 1 <= reductions[0] <= MOST_CELLS:
        return {}
    return {"channels": len(stem), "cells": reductions[0]}


def _open_edges(ops: list[int]) -> str:
    names = [f"{source}->{target}" for (source, target), op in zip(EDGES, ops, strict=True) if not op]
    edges, have = (f"edge {names[0]}", "has") if len(names) == 1 else (f"edges {', '.join(names)}", "have")
    return f"its {edges} {have} no weights and could be none, skip_connect or avg_pool_3x3"


def _texts(value: object, depth: int = 4) -> Iterator[str]:
    if isinstance(value, str) and value.startswith("|"):
        yield value
    elif depth and isinstance(value, Mapping):
        yield from itertools.chain.from_iterable(_texts(item, depth - 1) for item in value.values())
    elif depth and isinstance(value, (list, tuple)):
        yield from itertools.chain.from_iterable(_texts(item, depth - 1) for item in value)


# --- the zoo: built with the sizes that some tensors show, and compared ----------------------------------


def zoo(state: State, metadata: Mapping[str, Any]) -> Inferred | None:
    """Returns the zoo's network with these tensors, whose names may be synonyms (see `tensor_names`)."""
    classes, channels = classes_of(state), in_channels_of(state)
    if classes is None or channels is None:
        return None
    for fields, side in _of_zoo(state):
        arch = {"space": "zoo", **fields}
        with contextlib.suppress(RbError):  # a network of such sizes does not exist
            if fits(state, arch, classes, (channels, side, side)):
                return Inferred(arch, classes, channels)
    return None


def fits(state: State, arch: Mapping[str, Any], classes: int, shape: Shape) -> bool:
    """True if an architecture's network has exactly these tensors. Raises RbError if it cannot be built."""
    wanted = shapes_of(tuple(arch.items()), classes, shape)
    if Counter(wanted.values()) - Counter(value.shape for value in state.values()):
        return False
    new = translation(state, wanted)
    there = {new[key]: value.shape for key, value in state.items() if key in new}
    return {key: shape for key, shape in there.items() if not key.endswith(OPTIONAL)} == wanted


def _of_zoo(state: State) -> Iterator[tuple[dict[str, Any], int]]:
    """Yields architectures of the zoo that may have these weights, each with its images' side."""
    first = weight(state, "block1.layer.0.conv1.weight", 4)
    if first is not None:
        count = len(numbered(state, r"block1\.layer\.(\d+)\.conv1\.weight"))
        yield {"name": f"wrn-{6 * count + 4}-{len(first) // 16}"}, 32
    patches, windows, features = _patches(state), pooled_windows(state), weight(state, "fc1.weight", 2)
    for name, form in FORMS.items():
        if isinstance(form, ResNetForm):
            pool = {"pool": "4x4"} if windows > 1 else {}
            yield from (({"name": name, "stem": stem, **pool}, 32 * windows) for stem in STEMS[:2])
        elif isinstance(form, ViT) and patches is not None:
            yield {"name": name, **patches}, 224
        elif isinstance(form, SimpleCNNForm) and features is not None:
            yield {"name": name}, 4 + 2 * math.isqrt(features.shape[1] // 64)
        elif isinstance(form, (VGGForm, PreActResNetForm)):
            yield {"name": name}, 32


def pooled_windows(state: State) -> int:
    """Returns the number of 4x4 pooling windows per side in a ResNet, which is 1 for global pooling."""
    head = head_of(state)
    channels = 2048 if "layer1.0.conv3.weight" in state else 512
    side = 1 if head is None else math.isqrt(head.shape[1] // channels)
    return side if head is not None and side * side * channels == head.shape[1] else 1


def _patches(state: State) -> dict[str, int] | None:
    """Returns a transformer's `patch` and `side` if they differ from 16 and 224, and None for other networks.

    The weights do not show the number of heads: all published networks have heads of 64 channels.
    """
    for patches, positions in (
        ("conv_proj.weight", "encoder.pos_embedding"),
        ("patch_embed.proj.weight", "pos_embed"),
    ):
        kernel, places = weight(state, patches, 4), weight(state, positions, 3)
        if kernel is not None and places is not None:
            patch = kernel.shape[-1]
            side = math.isqrt(places.shape[1] - 1) * patch
            return {} if (patch, side) == (16, 224) else {"patch": patch, "side": side}
    return None


# --- variants: networks with the same tensor names and shapes that compute different functions -------------

# Fields of an architecture record that distinguish variants.
VARIANT_FIELDS = ("stem", "shortcut", "activation", "eps")


def variants_of(arch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the architecture, and after it its known variants."""
    usual = {"shortcut": SHORTCUTS[0], **arch}
    others = [fields for fields in _variant_fields(arch) if any(usual.get(f) != v for f, v in fields.items())]
    return [dict(arch), *({**arch, **fields} for fields in others)]


def label(arch: Mapping[str, Any]) -> str:
    """Returns NAME:FIELD=VALUE for messages and `--arch`, with the space unless it is the zoo."""
    space = "" if arch.get("space") in ("zoo", "nasbench201") else f"{arch.get('space')}:"
    fields = [f":{field}={arch[field]}" for field in (*VARIANT_FIELDS, "pool") if field in arch]
    return f"{space}{arch.get('name') or arch.get('str')}{''.join(fields)}"


def _variant_fields(arch: Mapping[str, Any]) -> list[dict[str, str]]:
    name = str(arch.get("name"))
    if arch.get("space") in VARIANTS:
        return list(VARIANTS.load(str(arch["space"]))(arch))
    form = FORMS.get(name) if arch.get("space") == "zoo" else None
    if isinstance(form, ResNetForm) and arch.get("stem") != "imagenet" and arch.get("pool") != "4x4":
        return [{"stem": "cifar"}, {"stem": "cifar-maxpool"}]
    if isinstance(form, PreActResNetForm):
        return [{"shortcut": shortcut} for shortcut in SHORTCUTS]
    return []


def different_cells(candidates: Sequence[Inferred]) -> list[dict[str, Any]]:
    """Returns one architecture per function: cells that differ only in unused edges compute the same one."""
    by_function: dict[tuple[int | None, ...], dict[str, Any]] = {}
    for arch in sorted((one.arch for one in candidates), key=lambda arch: int(arch["index"])):
        ops = nb201.ops_of(arch)
        used = edges_to_compute(ops)
        by_function.setdefault(tuple(op if live else None for op, live in zip(ops, used, strict=True)), arch)
    return list(by_function.values())
