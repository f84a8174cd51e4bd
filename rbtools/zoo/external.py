"""Architectures of other libraries, and a table of torchvision's networks.

`python -m rbtools.zoo.make_torchvision_table` writes the table, which a test compares with torchvision.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from rbtools.errors import RbError, unknown
from rbtools.models import Shape
from rbtools.spaces.own_code import Foreign
from rbtools.spaces.zoo import ListedSpace

SMALL_STEM = "cifar"
WITH_SMALL_STEM = ("mobilenet_v2", "shufflenet_v2_")  # beginnings of the names of networks that have it


@cache
def table() -> dict[str, dict[str, Any]]:
    """Maps the names of torchvision's classification networks to their rows of the table.

    `params` is [a, b] for a + b x classes parameters. `per_channel` is the number of weights of the first
    layer for each image channel. `macs` maps a side length in pixels to [a, b] for a + b x classes
    multiply-adds, for three channels. `smallest` is the smallest side length in pixels. `fixed` is the only
    accepted side length, or 0. `auxiliary` is true if the network has heads that only training uses. `head`
    and `stem` are the names of the last and first weights. `digest` is the result of
    `rbtools.zoo.by_digest.digest`.
    """
    return json.loads(Path(__file__).with_name("torchvision.json").read_text("utf-8"))


@cache
def timm_table() -> dict[str, dict[str, Any]]:
    """Maps digests of names and shapes to rows with `head`, `stem` and one name per function (`names`)."""
    return json.loads(Path(__file__).with_name("timm.json").read_text("utf-8"))


def torchvision(name: str) -> dict[str, Any]:
    """Returns the row for a network, with its name. Raises RbError for an unknown name."""
    if name not in table():
        raise unknown("torchvision model", name, table())
    return {"name": name, **table()[name]}


def small_stem(arch: Mapping[str, Any]) -> bool:
    """True if the record describes the variant for small images (`stem` "cifar").

    In this variant, the first layers have no strides, and a shufflenet has no pooling
    (huyvnphan/PyTorch_CIFAR10, chenyaofo/pytorch-cifar-models). Raises RbError for another stem, and for a
    network without this variant.
    """
    stem, name = arch.get("stem"), str(arch.get("name"))
    if stem is not None and not (stem == SMALL_STEM and name.startswith(WITH_SMALL_STEM)):
        raise RbError(
            f"torchvision's {name} does not support the stem {stem!r}. The only stem is {SMALL_STEM}, for"
            " mobilenet_v2 and shufflenet_v2. Leave it out for other networks."
        )
    return stem is not None


def refuse_small_images(about: Mapping[str, Any], shape: Shape) -> None:
    side = min(shape[1:])
    if not about["fixed"] and side < about["smallest"]:
        raise RbError(
            f"torchvision's {about['name']} needs images with sides of at least {about['smallest']} pixels,"
            f" but these have {shape[1]}x{shape[2]}. Resize the images, or choose another model."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Torchvision(ListedSpace):
    """The classification networks of torchvision, in alphabetical order."""

    name: ClassVar[str] = "torchvision"

    def names(self) -> list[str]:
        return list(table())

    def describe(self, arch: Mapping[str, Any], classes: int, shape: Iterable[int]) -> dict[str, Any]:
        """Returns `arch` with `params`, and with `macs` if the table has images of this size."""
        about = torchvision(str(arch.get("name")))
        in_channels, height, width = shape
        fields = {key: value for key, value in arch.items() if key != "macs"}
        base, each = about["params"]
        counted = {"params": base + each * classes + (in_channels - 3) * about["per_channel"]}
        side = about["fixed"] or (height if height == width else 0)
        if in_channels == 3 and str(side) in about["macs"] and not small_stem(arch):
            base, each = about["macs"][str(side)]
            counted["macs"] = base + each * classes
        return {**fields, **counted}


def timm() -> Foreign:
    return Foreign(name="timm", example="timm:vit_tiny_patch16_224")


def repo() -> Foreign:
    """The networks of public repositories (`rbtools.zoo.repositories`)."""
    return Foreign(name="repo", example="repo:deepmind/wrn-28-10")
