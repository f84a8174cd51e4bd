"""Data sets: uint8 images with labels, described and fingerprinted without loading torch.

A name may have an argument, as in `imagefolder:PATH` or `digits:classes=3/8` (only two classes of digits). To
add a data set, write one file and add one line to the registry here. python:MODULE:CLASS is a data set in the
user's own code. Published data sets are described without their files.
"""

from __future__ import annotations

import os
from typing import Any

from rbtools.datasets import indices, of_classes, preprocessing
from rbtools.datasets.base import Dataset, DatasetSource, Description
from rbtools.datasets.indices import subset
from rbtools.datasets.normalization import NORMALIZATIONS
from rbtools.errors import RbError
from rbtools.registry import OWN, Registry

__all__ = [
    "DATASETS",
    "NORMALIZATIONS",
    "WITH_PATH",
    "Dataset",
    "Description",
    "describe",
    "indices",
    "load",
    "source",
    "subset",
]

DATASETS = Registry(
    "data set",
    {
        "digits": "rbtools.datasets.digits:Digits",
        "mnist": "rbtools.datasets.digits:Mnist",
        "svhn": "rbtools.datasets.digits:Svhn",
        "cifar10": "rbtools.datasets.cifar:Cifar10",
        "cifar100": "rbtools.datasets.cifar:Cifar100",
        "cinic10": "rbtools.datasets.photographs:Cinic10",
        "tinyimagenet": "rbtools.datasets.photographs:TinyImageNet",
        "imagenet": "rbtools.datasets.photographs:ImageNet",
        "imagenet50": "rbtools.datasets.photographs:ImageNet50",
        "imagenet16-120": "rbtools.datasets.cifar:ImageNet16",
        "cifar10-c": "rbtools.datasets.corrupted:Cifar10C",
        "cifar100-c": "rbtools.datasets.corrupted:Cifar100C",
        "imagefolder": "rbtools.datasets.imagefolder:ImageFolder",
        "npz": "rbtools.datasets.npz:Npz",
        "parquet": "rbtools.datasets.parquet:Parquet",
    },
    group="datasets",
)

# Data sets whose name is followed by a path.
WITH_PATH = ("imagefolder", "npz", "parquet")


PathLike = str | os.PathLike[str]


def source(
    name: str,
    data_dir: PathLike | None = None,
    class_map: PathLike | None = None,
    *,
    allow_code: bool = False,
    **options: Any,
) -> DatasetSource:
    """The data set called `name`, not yet loaded. Raises RbError for an invalid name or argument.

    `data_dir` is the folder of published data sets (by default RB_DATA, or else the folder `data`).
    `class_map` is a file that maps class names to indices, for models that number the classes differently.
    `allow_code` permits importing the user's code in python:MODULE:CLASS. `options` scale and crop the
    images: `resize`, `crop`, `interpolation`, `squash` and `transform` as on the command line, or
    `preprocessing`, the string in a record.
    """
    scaled = preprocessing.of_options(**options)
    word, colon, argument = _parted(name)
    if word.startswith(OWN) and not allow_code:
        raise RbError(f"{word} names Python code, which would be run. If you trust it, add --allow-code.")
    if word not in DATASETS and (meant := _kind_of(name)):
        raise RbError(f"There is no data set '{name}'. For the file or folder with this name, write {meant}.")
    mapped = None if class_map is None else os.fspath(class_map)
    chosen = argument.startswith(of_classes.PREFIX) and word not in WITH_PATH and not word.startswith(OWN)
    # An imagefolder applies its class map itself.
    if chosen or (mapped is not None and word != "imagefolder"):
        whole = source(word if chosen else name, data_dir, allow_code=allow_code, preprocessing=scaled)
        return of_classes.OfClasses(
            name=name,
            argument=argument if chosen else None,
            class_map=mapped,
            preprocessing=whole.preprocessing,
            whole=whole,
        )
    kind = DATASETS.load(word)
    scaled = None if scaled == kind.usual else scaled
    opened: DatasetSource = kind(
        name=name,
        argument=argument if colon else None,
        data_dir=None if data_dir is None else os.fspath(data_dir),
        class_map=mapped,
        **({"preprocessing": scaled} if kind.decodes else {}),
    )
    if scaled is None or kind.decodes:
        return opened
    return preprocessing.ScaledDataset(name=name, preprocessing=scaled, whole=opened)


def _parted(name: str) -> tuple[str, str, str]:
    """Split a name into the name in the registry (or python:MODULE:CLASS), the colon (empty without an
    argument), and the argument."""
    if not name.startswith(OWN):
        return name.partition(":")
    module, colon, after_module = name.removeprefix(OWN).partition(":")
    attribute, further, argument = after_module.partition(":")
    return f"{OWN}{module}{colon}{attribute}", further, argument


def _kind_of(path: str) -> str | None:
    """The name for a path, with its kind (`npz:PATH`), or None if the path is not a data set."""
    kinds = {".npz": "npz", ".parquet": "parquet"}
    kind = "imagefolder" if os.path.isdir(path) else kinds.get(os.path.splitext(path)[1])
    return f"{kind}:{path}" if kind and os.path.exists(path) else None


def describe(
    name: str,
    data_dir: PathLike | None = None,
    *,
    class_map: PathLike | None = None,
    allow_code: bool = False,
    **options: Any,
) -> Description:
    """Describe a data set (shape, classes, sizes) without loading it and without importing torch.

    `options` are those of `source`.
    """
    return source(name, data_dir, class_map, allow_code=allow_code, **options).describe()


def load(
    name: str,
    split: str,
    data_dir: PathLike | None = None,
    *,
    class_map: PathLike | None = None,
    allow_code: bool = False,
    **options: Any,
) -> Dataset:
    """One split in memory, with `.images` uint8 (N, C, H, W) and `.labels` int64 (N,).

    `options` scale and crop the images (`source`), such as resize=256, crop=224. Raises RbError if the name
    or the split is unknown, or if a file (named in the message) is unreadable.
    """
    return source(name, data_dir, class_map, allow_code=allow_code, **options).load(split)
