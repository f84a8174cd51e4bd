"""Networks of torchvision and timm."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from rbtools.errors import RbError, unknown
from rbtools.models import Shape
from rbtools.zoo import external, timm_2020


def from_torchvision(arch: Mapping[str, Any], *, classes: int, shape: Shape) -> nn.Module:
    """Builds torchvision's classification network called `arch["name"]` without its published weights.

    The first convolution has as many input channels as the images. If the network supports only one image
    size, it resizes all images to this size. Auxiliary heads for training are left out. If `arch["stem"]` is
    "cifar", the network is the variant for small images (see `external.small_stem`). Raises RbError if the
    name is unknown or the images are too small.
    """
    # the import takes 2 s, so other networks skip it
    from rbtools.models.torchvision_import import torchvision

    about = external.torchvision(str(arch.get("name")))
    options = {"aux_logits": False, "init_weights": True} if about["auxiliary"] else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the constructor warns about a slow initialisation
        network: nn.Module = torchvision.models.get_model(
            about["name"], weights=None, num_classes=classes, **options
        )
    external.refuse_small_images(about, shape)
    if external.small_stem(arch):
        without_first_strides(network)
    if shape[0] != 3:
        let_in(network, about["stem"].removesuffix(".weight"), shape[0])
    return resizing(network, about["fixed"]) if about["fixed"] else network


def variants_of(arch: Mapping[str, Any]) -> list[dict[str, str]]:
    """Returns the fields of the usual variant and, if there is one, of the variant for small images."""
    small = str(arch.get("name")).startswith(external.WITH_SMALL_STEM)
    return [{}, {"stem": external.SMALL_STEM}] if small else []


def without_first_strides(network: nn.Module) -> None:
    """Change a mobilenet_v2 or a shufflenet_v2 into the variant for small images, in place."""
    if hasattr(network, "maxpool"):
        network.maxpool = nn.Identity()
        places = ["conv1.0"]
    else:
        places = ["features.0.0", "features.2.conv.1.0"]
    for place in places:
        first = network.get_submodule(place)
        assert isinstance(first, nn.Conv2d)
        first.stride = (1, 1)


def let_in(network: nn.Module, place: str, channels: int) -> None:
    """Replace the first convolution, at `place`, with a convolution for images with `channels` channels."""
    parent, _, name = place.rpartition(".")
    old = network.get_submodule(place)
    assert isinstance(old, nn.Conv2d)
    sizes: Any = {"kernel_size": old.kernel_size, "stride": old.stride, "padding": old.padding}
    new = nn.Conv2d(channels, old.out_channels, bias=old.bias is not None, **sizes)
    setattr(network.get_submodule(parent), name, new)


def resizing(network: nn.Module, side: int) -> nn.Module:
    """Make a network resize images of another size to its own size."""

    def resized(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (images,) = inputs
        if tuple(images.shape[2:]) == (side, side):
            return inputs
        return (F.interpolate(images, (side, side), mode="bilinear", align_corners=False),)

    network.register_forward_pre_hook(resized)
    return network


def import_timm() -> Any:
    """Imports timm, with the network of `timm_2020`. Raises RbError if timm is not installed."""
    # timm imports torchvision, which fails if its compiled operators cannot be loaded.
    from rbtools.models.torchvision_import import torchvision  # noqa: F401

    try:
        import timm
    except ImportError:
        raise RbError(
            "This needs the package timm, which is not installed. Install it with"
            " pip install 'rbtools[timm]'."
        ) from None
    timm_2020.register(timm)
    return timm


def from_timm(arch: Mapping[str, Any], *, classes: int, shape: Shape) -> nn.Module:
    """Builds timm's network called `arch["name"]` without its published weights. Nothing is downloaded.

    For vision transformers, `side` and `patch` in the record are the side lengths of images and patches.
    Raises RbError if timm is not installed or does not have the network, or if the network does not support
    these sizes.
    """
    network = _timm(arch, num_classes=classes, in_chans=shape[0])
    cfg = getattr(network, "pretrained_cfg", {})
    side = arch.get("side") or (cfg["input_size"][-1] if cfg.get("fixed_input_size") else None)
    return resizing(network, int(side)) if side else network


def pretrained_timm(
    arch: Mapping[str, Any], state: Mapping[str, Tensor], *, classes: int, shape: Shape
) -> nn.Module:
    """Builds timm's network with these weights. timm adapts patches, positions, channels and classes.

    `state` contains tensors with timm's names. The classifier is newly initialised unless timm publishes the
    weights for `classes` classes. Raises RbError if a tensor is missing or has a shape that timm cannot
    adapt.
    """
    timm = import_timm()
    name = str(arch.get("name"))
    cfg = timm.get_pretrained_cfg(name)
    ends = (cfg.classifier,) if isinstance(cfg.classifier, str) else tuple(cfg.classifier or ())
    wanted = _timm(arch, num_classes=classes, in_chans=shape[0]).state_dict()
    missing = [key for key in wanted if key not in state and not key.startswith(ends)]
    if missing:
        raise RbError(
            f"The weights lack {len(missing)} tensors of timm's {name}, such as {missing[0]}."
            " Expected a file of the same network with timm's tensor names."
        )
    try:
        return _timm(
            arch,
            num_classes=classes,
            in_chans=shape[0],
            pretrained=True,
            pretrained_cfg_overlay={"state_dict": dict(state), "source": "timm"},
        )
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise RbError(f"The weights do not fit timm's {name}: {reason}") from None


def _timm(arch: Mapping[str, Any], **options: Any) -> nn.Module:
    timm = import_timm()
    name = str(arch.get("name"))
    if not timm.is_model(name):  # so that timm downloads nothing: "hf-hub:..." is not in its list
        raise unknown("timm model", name, timm.list_models())
    sizes = {word: arch[key] for word, key in (("img_size", "side"), ("patch_size", "patch")) if key in arch}
    try:
        network: nn.Module = timm.create_model(name, **{"pretrained": False, **sizes, **options})
    except (TypeError, AssertionError) as error:
        if not sizes:
            raise
        asked = " and ".join(f"{key}={arch[key]}" for key in ("side", "patch") if key in arch)
        raise RbError(
            f"timm's {name} cannot be built with {asked}: {error}. Leave out side= and patch=, or"
            " choose a vision transformer."
        ) from None
    patch = getattr(getattr(network, "patch_embed", None), "patch_size", None)
    if "side" in arch and patch and arch["side"] % patch[0]:  # otherwise timm would cut off the remainder
        raise RbError(
            f"A side of {arch['side']} pixels cannot be divided into patches of {patch[0]} in timm's {name}."
            " Choose a patch that divides it."
        )
    return network
