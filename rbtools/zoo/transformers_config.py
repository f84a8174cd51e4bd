"""Reads `config.json` and `preprocessor_config.json` of the package transformers' image classifiers.

`zoo.transformers_names` recognises the network from its weights. This module reads the preprocessing, and
checks that the class in rbtools computes the configured function.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rbtools.errors import RbError

IMAGES_FILE = "preprocessor_config.json"
_VIT = {"hidden_act": "gelu", "qkv_bias": True}
# Maps transformers' classes to the settings of the classes that are built here, which are also the defaults.
CLASSES: dict[str, dict[str, Any]] = {
    "ViTForImageClassification": _VIT,
    "DeiTForImageClassificationWithTeacher": _VIT,
    "SwinForImageClassification": {
        **_VIT,
        "use_absolute_embeddings": False,
        "image_size": 224,
        "layer_norm_eps": 1e-5,
    },
    "ConvNextForImageClassification": {"hidden_act": "gelu"},
    "ConvNextV2ForImageClassification": {"hidden_act": "gelu"},
    "ResNetForImageClassification": {
        "hidden_act": "relu",
        "downsample_in_first_stage": False,
        "downsample_in_bottleneck": False,
    },
    "RegNetForImageClassification": {"hidden_act": "relu"},
}
_DISTILLED = {192: "tiny", 384: "small", 768: "base"}  # maps widths to timm's names
EPSILON = 1e-6  # LayerNorm's epsilon here; a smaller epsilon changes logits by at most 1e-5 of the largest
_OF_A_HEAD = 64  # channels of a head in all vision transformers here
_INTERPOLATIONS = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
_LARGE = 384  # for at least this side, ConvNeXt's preprocessing scales both sides and does not crop


def network(config: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Returns the fields that the weights do not show. Raises RbError for a network that cannot be built."""
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else f"a {config.get('model_type')}"
    expected = CLASSES.get(name)
    if expected is None:
        raise _refused(source, f"is {name} of the package transformers, which rbtools cannot build")
    for key, value in expected.items():
        if config.get(key, value) != value:
            raise _refused(source, f"is a {name} with {key} {config[key]!r}, but only {value!r} is supported")
    epsilon = config.get("layer_norm_eps", 0)
    if epsilon > EPSILON and "layer_norm_eps" not in expected:
        raise _refused(source, f"is a {name} with layer_norm_eps {epsilon}; only 1e-6 or less is supported")
    if expected is _VIT and _OF_A_HEAD * config.get("num_attention_heads", 12) != _width(config):
        raise _refused(source, f"is a {name} whose heads do not have {_OF_A_HEAD} channels each")
    if name != "DeiTForImageClassificationWithTeacher":
        return {}
    size = _DISTILLED.get(_width(config))
    if size is None:
        raise _refused(source, f"is a {name} of width {_width(config)}, which timm does not have")
    patch, side = config.get("patch_size", 16), config.get("image_size", 224)
    return {"space": "timm", "name": f"deit_{size}_distilled_patch{patch}_{side}"}


def _width(config: Mapping[str, Any]) -> int:
    return int(config.get("hidden_size", 768))


def _refused(source: str, what: str) -> RbError:
    return RbError(
        f"{source} {what}. Write a function that builds the network, and add --arch"
        " python:MODULE:FUNCTION --allow-code --checkpoint model.safetensors."
    )


def images(config: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Returns `normalize` and, if the data set imagenet supports it, `preprocessing`.

    Raises RbError if pixels are not on the [0, 1] scale, and LookupError, TypeError or ValueError for a
    damaged file.
    """
    if not config.get("do_rescale", True) or abs(255 * config.get("rescale_factor", 1 / 255) - 1) > 1e-6:
        raise _refused(source, "takes pixels that are not scaled to [0, 1]")
    fields: dict[str, Any] = {"normalize": "none"}
    if config.get("do_normalize", True):
        fields["normalize"] = [[float(one) for one in config[key]] for key in ("image_mean", "image_std")]
    preprocessing = _preprocessing(config)
    return fields if preprocessing is None else {**fields, "preprocessing": preprocessing}


def _preprocessing(config: Mapping[str, Any]) -> str | None:
    """Returns the preprocessing as a string for the data set imagenet, or None if it is not supported."""
    interpolation, size = _INTERPOLATIONS.get(config.get("resample", 0)), config.get("size")
    if interpolation is None or size is None or not config.get("do_resize", True):
        return None
    sides = size if isinstance(size, Mapping) else {}
    shortest = sides.get("shortest_edge")
    if "crop_pct" in config:  # in ConvNeXt's configuration, a single size is the size of the crop
        side = int(sides["shortest_edge"] if sides else size)
        whole = int(side / (config["crop_pct"] or 1))
        large = f"squash-{interpolation}-{side}-{side}"
        return large if side >= _LARGE else f"{interpolation}-{whole}-{side}"
    crops = bool(config.get("do_center_crop"))
    height, width = (shortest or sides.get(key, size) for key in ("height", "width"))
    crop = config.get("crop_size", size) if crops else height
    tall, wide = (crop["height"], crop["width"]) if isinstance(crop, Mapping) else (crop, crop)
    if height != width or tall != wide or (shortest and not crops):
        return None
    return f"{'' if shortest else 'squash-'}{interpolation}-{int(height)}-{int(tall)}"
