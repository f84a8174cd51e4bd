"""Renames the tensors of the package transformers to the names in the classes that rbtools builds.

`save_pretrained` of transformers writes names such as `vit.encoder.layer.0...` and `classifier.weight`. Each
kind of network has a table of substitutions, which are applied one after the other. The new names are those
of timm (vit, deit, convnext, convnextv2, regnet), torchvision (resnet) or Microsoft's code (swin). Query, key
and value become one matrix. `zoo.transformers_config` checks the activation and the number of heads, which a
weights file does not show.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

Substitutions = tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...]

_QUERY, _KEY, _VALUE = (f".attn.{word}." for word in ("query", "key", "value"))


def _numbered_from_one(words: str) -> Callable[[re.Match[str]], str]:
    """Returns a replacement whose first number counts from 1 instead of 0."""
    return lambda match: words.format(int(match[1]) + 1, *match.groups()[1:])


_TRANSFORMER: Substitutions = (
    (r"attention\.(?:attention|self)\.", "attn."),
    (r"attention\.output\.dense", "attn.proj"),
    (r"layernorm_before", "norm1"),
    (r"layernorm_after", "norm2"),
    (r"intermediate\.dense", "mlp.fc1"),
    (r"(?<=\d\.)output\.dense", "mlp.fc2"),
    (r"embeddings\.patch_embeddings\.projection", "patch_embed.proj"),
    (r"embeddings\.norm", "patch_embed.norm"),
    (r"embeddings\.cls_token", "cls_token"),
    (r"embeddings\.distillation_token", "dist_token"),
    (r"embeddings\.position_embeddings", "pos_embed"),
    (r"^encoder\.layers\.", "layers."),
    (r"^encoder\.layer\.", "blocks."),
    (r"^layernorm\.", "norm."),
    (r"^(?:cls_)?classifier\.", "head."),
    (r"^distillation_classifier\.", "head_dist."),
)
_CONVNEXT: Substitutions = (
    (r"embeddings\.patch_embeddings", "stem.0"),
    (r"embeddings\.layernorm", "stem.1"),
    (r"downsampling_layer", "downsample"),
    (r"^encoder\.", ""),
    (r"^layernorm\.", "head.norm."),
    (r"\.layers\.", ".blocks."),
    (r"layer_scale_parameter", "gamma"),
    (r"dwconv", "conv_dw"),
    (r"layernorm", "norm"),
    (r"pwconv(\d)", r"mlp.fc\1"),
    (r"\.grn\.", ".mlp.grn."),
    (r"^classifier\.", "head.fc."),
)
_RESNET: Substitutions = (
    (r"embedder\.embedder\.convolution", "conv1"),
    (r"embedder\.embedder\.normalization", "bn1"),
    (r"encoder\.stages\.(\d)\.layers\.", _numbered_from_one("layer{}.")),
    (r"shortcut\.convolution", "downsample.0"),
    (r"shortcut\.normalization", "downsample.1"),
    (r"layer\.(\d)\.convolution", _numbered_from_one("conv{}")),
    (r"layer\.(\d)\.normalization", _numbered_from_one("bn{}")),
    (r"^classifier\.1\.", "fc."),
)
_REGNET: Substitutions = (
    (r"embedder\.embedder", "stem"),
    (r"encoder\.stages\.(\d)\.", _numbered_from_one("s{}.")),
    (r"layers\.(\d+)\.", _numbered_from_one("b{}.")),
    (r"attention\.0", "fc1"),
    (r"attention\.2", "fc2"),
    (r"layer\.2\.fc", "se.fc"),  # RegNet-Y: squeeze-and-excitation is before the last convolution
    (r"layer\.3\.", "layer.2."),
    (r"layer\.(\d)\.", _numbered_from_one("conv{}.")),
    (r"shortcut", "downsample"),
    (r"convolution", "conv"),
    (r"normalization", "bn"),
    (r"^classifier\.1\.", "head.fc."),
)
# Maps the first word of the names, which transformers' class gives its body, to the table.
TABLES: dict[str, Substitutions] = {
    "vit": _TRANSFORMER,
    "deit": _TRANSFORMER,
    "swin": _TRANSFORMER,
    "convnext": _CONVNEXT,
    "convnextv2": _CONVNEXT,
    "resnet": _RESNET,
    "regnet": _REGNET,
}
CONVOLVED = 80  # width of timm's largest ConvNeXtV2 with 1x1 convolutions instead of linear layers
_HEADS = ("classifier.", "cls_classifier.", "distillation_classifier.")


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors with the new names, or with unchanged names if no table matches."""
    kind = next((kind for kind in TABLES if any(key.startswith(f"{kind}.") for key in state)), None)
    if kind is None or not all(key.startswith((f"{kind}.", *_HEADS)) for key in state):
        return dict(state)
    names = {key: key.removeprefix(f"{kind}.") for key in state}
    for pattern, words in TABLES[kind]:
        names = {key: re.sub(pattern, words, name, count=1) for key, name in names.items()}
    if len(set(names.values())) < len(names):
        return dict(state)
    tensors = {names[key]: value for key, value in state.items()}
    if kind == "convnextv2":
        tensors = dict(_of_convnextv2(tensors))
    for query in [name for name in tensors if _QUERY in name]:
        keys = [query.replace(_QUERY, word) for word in (_QUERY, _KEY, _VALUE)]
        parts: list[Any] = [tensors.get(key) for key in keys]
        if all(part is not None and part.ndim and part.shape == parts[0].shape for part in parts):
            tensors[query.replace(_QUERY, ".attn.qkv.")] = torch.cat(parts)
            for key in keys:
                del tensors[key]
    return tensors


def _of_convnextv2(state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors with timm's shapes: in small networks, 1x1 convolutions replace linear layers."""
    stem = state.get("stem.0.weight")
    small = stem is not None and len(stem) <= CONVOLVED
    for key, value in state.items():
        if ".grn." in key:
            yield key, value.flatten()
        elif small and value.ndim == 2 and ".mlp.fc" in key:
            yield key, value[:, :, None, None]
        else:
            yield key, value
