"""The interface of data sets, and the classes of their descriptions and loaded splits."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rbtools.errors import NoSplit, RbError, near, shown
from rbtools.lazy import np, torch
from rbtools.plain_files import opened
from rbtools.registry import Registered

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.datasets.preprocessing import Preprocessing
    from rbtools.datasets.streaming import Streamed

MOST_CLASSES = 100_000  # the most classes without names; ImageNet-21k has a fifth of this number
_HTML = (b"<!doctype html", b"<html", b"<head", b"<body", b"<script")


class NotHere(RbError):
    """Raised if the files of a data set are not found."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """The description of a data set, which is available without loading the data.

    `shape` is (C, H, W). `sizes` maps each existing split to its number of images. `mean` and `std` are the
    usual normalisation, with one value per channel on the [0, 1] scale, or None. `present` lists the classes
    that have images, if some have none. `skipped` is the number of files in the folders that are not images.
    `augment` lists the usual training augmentations ("crop", "flip"). `notes` are sentences for the user.
    """

    name: str
    shape: tuple[int, int, int]
    classes: int
    class_names: list[str]
    sizes: dict[str, int]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    present: tuple[int, ...] = ()
    skipped: int = 0
    augment: tuple[str, ...] = ("crop", "flip")
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """One split, with its arrays on the CPU.

    Shape: images uint8 (N, C, H, W); labels int64 (N,), in [0, classes). The index of an example determines
        its random numbers. Images are a tensor, or a `Streamed` if they do not fit in memory.
    """

    name: str
    split: str
    classes: int
    class_names: list[str]
    images: Tensor | Streamed = field(repr=False)
    labels: Tensor = field(repr=False)

    def __len__(self) -> int:
        return len(self.labels)


class HashCache(Protocol):
    """A cache of fingerprints, such as a store."""

    def get(self, key: str) -> str | None: ...

    def put(self, key: str, value: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class DatasetSource(Registered, ABC):
    """A data set that is not loaded yet. `name` is the user's string, `argument` the part after its colon.

    Classes with `decodes` scale and crop images as described by `preprocessing`, or else by `usual`.
    """

    decodes: ClassVar[bool] = False
    usual: ClassVar[Preprocessing | None] = None

    name: str
    argument: str | None = None
    data_dir: str | None = None
    class_map: str | None = None
    preprocessing: Preprocessing | None = None

    @abstractmethod
    def describe(self) -> Description:
        """The description of the data set, made without loading the images or importing torch."""

    @abstractmethod
    def load(self, split: str) -> Dataset:
        """One split in memory."""

    @abstractmethod
    def fingerprint(self, split: str, cache: HashCache | None = None) -> str:
        """SHA-256 (hex) of the content of a split, computed without importing torch."""

    def download(self, split: str, say: Callable[[str], None], check_cancelled: Callable[[], None]) -> None:
        """Download missing published files of a split.

        `say` is called with progress messages. `check_cancelled` is called often and raises an exception to
        stop the download. Raises RbError if the download fails or if the content is not the published
        content.
        """
        return None

    def described(
        self, shape: Sequence[int], class_names: Sequence[str], sizes: dict[str, int], **more: Any
    ) -> Description:
        """A description. Colour images are cropped and flipped, unless `more` contains another `augment`."""
        channels, height, width = shape
        fields = {"augment": ("crop", "flip") if channels == 3 else (), **more}
        names = list(class_names)
        return Description(
            name=self.name,
            shape=(channels, height, width),
            classes=len(names),
            class_names=names,
            sizes=sizes,
            **fields,
        )

    def loaded(
        self, split: str, images: np.ndarray | Tensor | Streamed, labels: np.ndarray, names: Sequence[str]
    ) -> Dataset:
        """A split with these images, labels and class names. Raises RbError if a label is not an index."""
        check_labels(self.name, labels, names)
        return Dataset(
            name=self.name,
            split=split,
            classes=len(names),
            class_names=list(names),
            images=torch.from_numpy(images) if isinstance(images, np.ndarray) else images,
            labels=torch.from_numpy(labels),
        )

    def unknown_split(self, split: str, known: Iterable[str]) -> NoSplit:
        known = list(known)
        listed = ", ".join(known)
        return NoSplit(
            f"The data set {self.name} has no split '{split}'.{near(split, known)} It has: {listed}."
        )


def are_numbers(names: Iterable[str]) -> bool:
    """Whether all names are integers of at most 9 digits."""
    return all(name.isascii() and name.isdigit() and len(name) < 10 for name in names)


def present_in(class_names: Sequence[str], there: Iterable[str]) -> tuple[int, ...]:
    """The value of `Description.present`: the indices of the names in `there`, or () for all names."""
    present = tuple(place for place, name in enumerate(class_names) if name in set(there))
    return present if len(present) < len(class_names) else ()


def channels_of(argument: str | None) -> tuple[str, int | None]:
    """The path in the argument, and the number of channels: 1 for PATH:grey, 3 for PATH:rgb, else None."""
    path, colon, word = (argument or "").rpartition(":")
    return (
        (path, {"grey": 1, "rgb": 3}[word]) if colon and word in ("grey", "rgb") else (argument or "", None)
    )


def numbered(where: str, labels: Iterable[np.ndarray]) -> list[str]:
    """The class names of a data set without names: the numbers from 0 to the highest label of all splits.

    Raises RbError if the highest label is so large that the file must be damaged.
    """
    count = max(int(of_split.max(initial=-1)) for of_split in labels) + 1
    if count > MOST_CLASSES:
        raise RbError(
            f"The highest label of the data set {where} would mean {count} classes. Expected labels that"
            f" count from 0 without gaps, and at most {MOST_CLASSES} classes."
        )
    return [str(number) for number in range(count)]


def check_labels(name: str, labels: np.ndarray, classes: Sequence[str]) -> None:
    """Raise RbError if a label is not an index into `classes`. The message names the first such label."""
    count = len(classes)
    wrong = ((labels < 0) | (labels >= count)).nonzero()[0]
    if len(wrong):
        raise RbError(
            f"The data set {name} gives image {wrong[0]} the label {labels[wrong[0]]}, but has only {count}"
            f" classes. Expected labels from 0 to {count - 1}."
        )


def damaged(path: str | os.PathLike[str], expected: str, error: Exception | str, advice: str = "") -> RbError:
    """The error for a file that is not `expected`, such as an .npz file. The message gives the reason."""
    advice = advice or "Copy or download the file again."
    try:
        with opened(path) as file:
            start = file.read(512)
    except OSError as wrong:
        return RbError(f"The file {path} cannot be read ({wrong.strerror}). Expected {expected}. {advice}")
    if not start:
        problem = "is empty"
    elif start.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(_HTML):
        problem = "is an HTML page that was saved as data"
    else:
        reason = shown(str(error), 300) or type(error).__name__
        problem = f"cannot be read ({reason}): it is truncated, damaged or not this kind of file"
    return RbError(f"The file {path} {problem}. Expected {expected}. {advice}")
