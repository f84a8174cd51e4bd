"""Published names of data sets and networks, and descriptions of architectures."""

from __future__ import annotations

from rbtools import spaces
from rbtools.errors import RbError
from rbtools.formats.base import Record
from rbtools.spaces import zoo

# Number of classes and shape of an image (C, H, W), for the counts of architectures.
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
    """Convert a name to lower case without hyphens and spaces, for comparison."""
    return "".join(letter for letter in text.lower() if letter.isalnum())


_DATASETS = {simple(name): name for name in SIZES}


def dataset_name(text: str) -> str:
    """Converts names such as `CIFAR-10` to `cifar10`. An unknown name is returned unchanged."""
    return _DATASETS.get(simple(text), text)


def described(arch: Record, dataset: str | None) -> Record:
    """Add the description to `arch`; params and macs only if the data set is known or they are given."""
    sizes = SIZES.get(dataset or "", SIZES["cifar10"])
    try:
        if arch.get("space") == "zoo" and dataset not in SIZES and not arch.keys() & {"params", "macs"}:
            return {**arch, **zoo.completed(arch, sizes[1])}  # torch need not count the network
        description = spaces.describe(arch, *sizes)
    except RbError:
        return arch
    if dataset not in SIZES:
        description = {
            key: value for key, value in description.items() if key not in ("params", "macs") or key in arch
        }
    return description
