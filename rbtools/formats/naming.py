"""Names of data sets and networks as files spell them, and what is known of the architectures they mean."""

from __future__ import annotations

from collections.abc import Mapping

from rbtools import spaces
from rbtools.errors import RbError
from rbtools.formats.base import Record

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
    """A name without what spellings differ in: case, hyphens, blanks."""
    return "".join(letter for letter in text.lower() if letter.isalnum())


_DATASETS = {simple(name): name for name in SIZES}


def dataset_name(text: str) -> str:
    """`CIFAR-10` as `cifar10`; a name that is not known stays."""
    return _DATASETS.get(simple(text), text)


class Names:
    """Published names and those of records, both ways; a name that neither side knows stays."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self.known = {simple(published): ours for published, ours in known.items()}
        self.published = {ours: published for published, ours in known.items()}

    def ours(self, published: str) -> str:
        return self.known.get(simple(published), published)

    def theirs(self, name: str) -> str:
        return self.published.get(name, name)


def described(arch: Record, dataset: str | None) -> Record:
    """`arch` with all that its space tells of it, counted for the data set where its images are known."""
    sizes = SIZES.get(dataset or "", SIZES["cifar10"])
    try:
        found = spaces.describe(arch, *sizes)
    except RbError:
        return arch
    if dataset not in SIZES:
        found = {key: value for key, value in found.items() if key not in ("params", "macs") or key in arch}
    return found
