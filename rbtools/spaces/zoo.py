"""The model zoo: fixed networks of papers on robustness, and their costs without torch.

They have the forms for small images, and adapt to 28x28x1, 32x32, 64x64 and 224x224 images: by average
pooling, a ResNet by its stem, a transformer by resizing the image.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from rbtools.errors import RbError, unknown
from rbtools.spaces.zoo_forms import (
    Form,
    PreActResNetForm,
    ResNetForm,
    SimpleCNNForm,
    VGGForm,
    ViT,
    WideResNetForm,
)

FORMS: dict[str, Form] = {
    "simplecnn": SimpleCNNForm(),
    "vgg11": VGGForm((1, 1, 2, 2, 2)),
    "vgg13": VGGForm((2, 2, 2, 2, 2)),
    "vgg16": VGGForm((2, 2, 3, 3, 3)),
    "vgg19": VGGForm((2, 2, 4, 4, 4)),
    "resnet18": ResNetForm((2, 2, 2, 2)),
    "resnet34": ResNetForm((3, 4, 6, 3)),
    "resnet50": ResNetForm((3, 4, 6, 3), bottleneck=True),
    "resnet101": ResNetForm((3, 4, 23, 3), bottleneck=True),
    "resnet152": ResNetForm((3, 8, 36, 3), bottleneck=True),
    "preactresnet18": PreActResNetForm((2, 2, 2, 2)),
    "preactresnet18-kuangliu": PreActResNetForm((2, 2, 2, 2), final_norm=False),
    "wrn-28-10": WideResNetForm(28, 10),
    "wrn-34-10": WideResNetForm(34, 10),
    "vit-s": ViT(384, 12),
    "vit-b": ViT(768, 12),
    "vit-l": ViT(1024, 24),
    "deit-ti": ViT(192, 12),
    "deit-s": ViT(384, 12),
}


def form(name: str) -> Form:
    """The form of that name: one of the list, or any `wrn-DEPTH-WIDTH`. Raises RbError for another."""
    known = FORMS.get(name)
    wide = re.fullmatch(r"wrn-(\d{1,4})-(\d{1,3})", name)
    if known is None and wide and int(wide[1]) >= 10 and int(wide[1]) % 6 == 4 and int(wide[2]):
        return WideResNetForm(int(wide[1]), int(wide[2]))
    if known is None:
        raise unknown("model", name, FORMS)
    return known


def completed(arch: Mapping[str, Any], shape: Iterable[int]) -> dict[str, Any]:
    """The `name` of a zoo architecture and the fields that decide its network. Raises RbError."""
    name = arch.get("name")
    if not isinstance(name, str):
        raise RbError(
            "The record's arch names the space zoo but no model."
            f" Expected a 'name', one of: {', '.join(FORMS)}."
        )
    in_channels, height, width = shape
    return {"name": name, **form(name).fields(arch, (in_channels, height, width))}


def costs(
    arch: str | Mapping[str, Any], classes: int = 10, shape: Iterable[int] = (3, 32, 32)
) -> tuple[int, int]:
    """Parameters, and the multiply-adds of convolutions, linear layers and attention for one image.

    Raises RbError for an unknown name or an empty image.
    """
    arch = {"name": arch} if isinstance(arch, str) else arch
    in_channels, height, width = shape
    whole = completed(arch, (in_channels, height, width))
    if min(in_channels, height, width, classes) < 1:
        raise RbError(
            f"{whole['name']} cannot take images of {in_channels}x{height}x{width} for {classes} classes."
            " Each of these must be 1 or more."
        )
    return form(whole["name"]).count(whole, classes, (in_channels, height, width))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Zoo:
    """The model zoo as a `rbtools.spaces.Space`; an index is a position in its list."""

    name: ClassVar[str] = "zoo"
    version: ClassVar[int] = 1
    sizes: ClassVar[tuple[str, ...]] = ()

    def __len__(self) -> int:
        return len(FORMS)

    def indices(self, unique: bool = False) -> Iterable[int]:
        forms = list(FORMS.values())
        return [i for i, one in enumerate(forms) if not (unique and one in forms[:i])]

    def arch(self, index: int, *, classes: int = 10, shape: Iterable[int] = (3, 32, 32)) -> dict[str, Any]:
        return self.describe({"space": self.name, "name": _named(index)}, classes, shape)

    def find(self, text: str) -> int:
        word = text.strip()
        if word.isascii() and word.isdigit():
            return list(FORMS).index(_named(int(word[:9])))
        if word not in FORMS:
            raise unknown("model", word, FORMS)
        return list(FORMS).index(word)

    def neighbours(self, index: int) -> list[int]:
        raise RbError(
            f"{_named(index)} has no neighbours: the space zoo is a plain list."
            " Neighbours are defined for nasbench201."
        )

    def describe(self, arch: Mapping[str, Any], classes: int, shape: Iterable[int]) -> dict[str, Any]:
        shape = tuple(shape)
        fields = completed(arch, shape)
        params, macs = costs({**arch, **fields}, classes, shape)
        return {**arch, **fields, "params": params, "macs": macs}


def _named(index: int) -> str:
    if not 0 <= index < len(FORMS):
        raise RbError(
            f"The space zoo has no model with the index {index}. Indices go from 0 to {len(FORMS) - 1}:"
            f" {', '.join(FORMS)}."
        )
    return list(FORMS)[index]
