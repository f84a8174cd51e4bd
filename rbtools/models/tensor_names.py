"""Translates tensor names of other implementations to the names in this package."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

# Names of the last layer, by itself or inside a Sequential.
HEAD = re.compile(r"(fc|linear|classifier|head|heads|last_linear|logits)(\.(\d+|head|fc))?\.weight")
OPTIONAL = ("num_batches_tracked", "n_averaged")  # suffixes of tensors that may be missing in a file

# Synonyms: kuangliu's (advbench, MART, Rice) and torchvision's.
SYNONYMS = {"shortcut": "downsample", "downsample": "shortcut", "linear": "fc", "fc": "linear"}

# Names in timm's (and DeiT's) vision transformer, and the names of torchvision.
TIMM_VIT = (
    (r"cls_token", "class_token"),
    (r"pos_embed", "encoder.pos_embedding"),
    (r"patch_embed\.proj\.", "conv_proj."),
    (r"blocks\.(\d+)\.norm1\.", r"encoder.layers.encoder_layer_\1.ln_1."),
    (r"blocks\.(\d+)\.norm2\.", r"encoder.layers.encoder_layer_\1.ln_2."),
    (r"blocks\.(\d+)\.attn\.qkv\.", r"encoder.layers.encoder_layer_\1.self_attention.in_proj_"),
    (r"blocks\.(\d+)\.attn\.proj\.", r"encoder.layers.encoder_layer_\1.self_attention.out_proj."),
    (r"blocks\.(\d+)\.mlp\.fc1\.", r"encoder.layers.encoder_layer_\1.mlp.0."),
    (r"blocks\.(\d+)\.mlp\.fc2\.", r"encoder.layers.encoder_layer_\1.mlp.3."),
    (r"norm\.", "encoder.ln."),
)

# The same layer in files of torchvision before 0.3.
_OLD_DENSENET = re.compile(r"(.*denselayer\d+\.(?:norm|relu|conv))\.([12]\..*)")

# Prefixes of tensors that a file may have besides the network that is built, and a tensor that identifies
# the network: the block that TRADES and MART leave unused, the first layers again
# (tml-epfl/understanding-fast-adv-training), and heads that only training uses.
UNUSED = (
    ("model_preact_hl1.", "layer1.0.bn1.weight"),
    ("sub_block1.", "block1.layer.0.conv1.weight"),
    ("AuxLogits.", "Mixed_7c.branch_pool.conv.weight"),
    ("aux1.", "inception5b.branch4.1.conv.weight"),
    ("aux2.", "inception5b.branch4.1.conv.weight"),
)
# The end of edge-popup's scores, which CARD's binary network does not use. It has no BatchNorm weights.
_SCORES, _WITHOUT_WEIGHTS = ".scores", ("layer4.1.bn2.running_mean", "layer4.1.bn2.weight")
# Microsoft's Swin transformer in timm's names: patches are merged at the beginning of the next stage; tensors
# that are computed while the network is built are left out.
_MERGING = re.compile(r"layers\.(\d)\.downsample\.(.*)")
_COMPUTED = (".relative_position_index", ".attn_mask")
_SWIN = "layers.1.downsample.reduction.weight"


def modern(key: str) -> str:
    old = _OLD_DENSENET.match(key)
    return old[1] + old[2] if old else key


def translation(given: Iterable[str], wanted: Mapping[str, Any]) -> dict[str, str]:
    """Maps each given name to its synonym in `wanted` or to itself. Names of unused tensors are left out."""
    heads = [key for key in wanted if HEAD.fullmatch(key)]
    head = heads[0].removesuffix("weight") if len(heads) == 1 else None
    given = list(given)
    if _SWIN in wanted and "layers.0.downsample.reduction.weight" in given:
        later = {key: match for key in given if (match := _MERGING.fullmatch(key))}
        moved = {key: f"layers.{int(match[1]) + 1}.downsample.{match[2]}" for key, match in later.items()}
        unmoved = [key for key in given if key not in moved and not key.endswith(_COMPUTED)]
        return {**moved, **{key: translated(key, wanted, head) for key in unmoved}}
    binary = _WITHOUT_WEIGHTS[0] in wanted and _WITHOUT_WEIGHTS[1] not in wanted
    return {
        key: translated(key, wanted, head)
        for key in given
        if key in wanted
        or not (
            any(key.startswith(start) and tell in wanted for start, tell in UNUSED)
            or (binary and key.endswith(_SCORES))
        )
    }


def translated(key: str, wanted: Mapping[str, Any], head: str | None = None) -> str:
    """Returns the synonym of `key` in `wanted`, or `key`. `head` is the prefix of the last layer's names."""
    if key in wanted:
        return key
    words = key.split(".")
    tries = [".".join(SYNONYMS.get(word, word) for word in words), *_from_timm(key)]
    if head is not None and HEAD.fullmatch(".".join([*words[:-1], "weight"])):
        tries.append(head + words[-1])
    return next((name for name in tries if name in wanted), key)


def _from_timm(key: str) -> Iterable[str]:
    for pattern, words in TIMM_VIT:
        if re.match(pattern, key):
            yield re.sub(pattern, words, key, count=1)
