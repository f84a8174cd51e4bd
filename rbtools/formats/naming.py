"""Published names of data sets and networks, and descriptions of their architectures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rbtools import spaces
from rbtools.errors import RbError
from rbtools.formats.base import Record
from rbtools.spaces import nasbench201, zoo

# Classes and shape of one image (C, H, W), for the counts of architectures.
SIZES: dict[str, tuple[int, tuple[int, int, int]]] = {
    "cifar10": (10, (3, 32, 32)),
    "cifar100": (100, (3, 32, 32)),
    "svhn": (10, (3, 32, 32)),
    "cinic10": (10, (3, 32, 32)),
    "mnist": (10, (1, 28, 28)),
    "tinyimagenet": (200, (3, 64, 64)),
    "imagenet16-120": (120, (3, 16, 16)),
    "imagenet50": (50, (3, 224, 224)),
    "imagenet": (1000, (3, 224, 224)),
}


def simple(text: str) -> str:
    """A name in lower case without hyphens and blanks, for comparison."""
    return "".join(letter for letter in text.lower() if letter.isalnum())


_DATASETS = {simple(name): name for name in SIZES}


def dataset_name(text: str) -> str:
    """`CIFAR-10` as `cifar10`; an unknown name is returned unchanged."""
    return _DATASETS.get(simple(text), text)


class NameMap:
    """Published names and those of records, both ways; unknown names are returned unchanged."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self.known = {simple(published): ours for published, ours in known.items()}
        self.published = {ours: published for published, ours in known.items()}

    def ours(self, published: str) -> str:
        return self.known.get(simple(published), published)

    def theirs(self, name: str) -> str:
        return self.published.get(name, name)


def described(arch: Record, dataset: str | None) -> Record:
    """`arch` with the description of its space; params and macs only for a known data set or if given."""
    sizes = SIZES.get(dataset or "", SIZES["cifar10"])
    try:
        if arch.get("space") == "zoo" and dataset not in SIZES and not arch.keys() & {"params", "macs"}:
            return {**arch, **zoo.completed(arch, sizes[1])}  # torch need not count it
        description = spaces.describe(arch, *sizes)
    except RbError:
        return arch
    if dataset not in SIZES:
        description = {
            key: value for key, value in description.items() if key not in ("params", "macs") or key in arch
        }
    return description


def cell(index: object, dataset: str | None) -> Record:
    """The `arch` of a NAS-Bench-201 network by its published id, with its class. Raises RbError."""
    if not (isinstance(index, int) or (isinstance(index, str) and index.isascii() and index.isdigit())):
        raise RbError(
            f"The architecture id is {index!r}. Expected a number from 0 to {nasbench201.SIZE - 1}, an index"
            " of NAS-Bench-201."
        )
    return described(nasbench201.arch(int(index)), dataset)


def class_of(arch: Mapping[str, Any]) -> int | None:
    """The representative of an architecture's class, under which published files list it.

    None for an architecture of another space. Raises RbError where `arch` does not determine its cell.
    """
    if arch.get("space") != "nasbench201":
        return None
    index = nasbench201.index_of(nasbench201.to_string(nasbench201.ops_of(arch)))
    return nasbench201.classes()[index]


_ZOO = {"wideresnet": "wrn-{}", "wrn": "wrn-{}", "preactresnet": "preactresnet{}", "resnet": "resnet{}"}


def zoo_name(published: str) -> str | None:
    """`WideResNet-34-10` as `wrn-34-10`; None for a network that the zoo does not have."""
    word = re.fullmatch(r"([A-Za-z]+)-?(\d+(?:-\d+)?)", published)
    form = _ZOO.get(word[1].lower()) if word else None
    if word is None or form is None:
        return None
    name = form.format(word[2])
    try:
        zoo.form(name)
    except RbError:
        return None
    return name
