"""Data sets whose images are arrays, and the base class of data sets that users write."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from rbtools.datasets import content_hash, streaming
from rbtools.datasets.base import Dataset, DatasetSource, Description, HashCache, check_labels, numbered
from rbtools.errors import RbError, shown
from rbtools.lazy import np

# Values, and files as (name, path), that identify the content of a split.
Stamped = tuple[Sequence[str], list[tuple[str, Path]]]


class Content(NamedTuple):
    """`pieces` are uint8 arrays (n, C, H, W) of consecutive images, in memory or memory-mapped.

    `labels` are int64 (N,), and `names` the class names.
    """

    pieces: list[np.ndarray]
    labels: np.ndarray
    names: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class ImageArrays(DatasetSource):
    @abstractmethod
    def content(self, split: str) -> Content:
        """The content of a split. Raises RbError if the split is unknown or a file is missing or damaged."""

    def stamped(self, split: str) -> Stamped | None:
        """The values and files that identify a cached fingerprint, or None if nothing would show a change."""
        return None

    def load(self, split: str) -> Dataset:
        content = self.content(split)
        ends = np.cumsum([len(piece) for piece in content.pieces])

        def fetch(ids: np.ndarray, out: np.ndarray) -> None:
            of_piece = np.searchsorted(ends, ids, side="right")
            for number in np.unique(of_piece):
                piece, chosen = content.pieces[number], of_piece == number
                out[chosen] = piece[ids[chosen] - ends[number] + len(piece)]

        images = streaming.images((ends[-1], *content.pieces[0].shape[1:]), fetch)
        return self.loaded(split, images, content.labels, content.names)

    def fingerprint(self, split: str, cache: HashCache | None = None) -> str:
        """The hash of pixels and labels, independent of the layout of the files."""
        stamped = self.stamped(split)
        if stamped is None:
            return self.hashed(split)
        return content_hash.remembered(cache, *stamped, lambda: self.hashed(split))

    def hashed(self, split: str) -> str:
        """The fingerprint, always computed from the content."""
        pieces, labels, names = self.content(split)
        check_labels(self.name, labels, names)
        return content_hash.pixels_hash(pieces, labels)


@dataclass(frozen=True, kw_only=True)
class ArrayDataset(ImageArrays):
    """A data set in memory. A subclass defines `arrays`, which returns the splits.

    `argument` is the part after the class in python:MODULE:CLASS:ARGUMENT, or None. `classes` are the names
    of the classes. Without names, the highest label of all splits determines the number of classes. Stored
    results are used again if `arrays` returns the same arrays.
    """

    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    classes: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def arrays(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns images uint8 (N, C, H, W) and labels (N,), which are integers counted from 0."""

    def describe(self) -> Description:
        """Describe the data set. All splits are loaded for this."""
        made = {split: _arrays_of(self, split) for split in self.splits}
        shapes = {images.shape[1:] for images, _ in made.values()}
        if len(shapes) > 1:
            raise self._wrong(f"its splits have images of different shapes: {sorted(shapes)}")
        names = self.classes or numbered(self.name, (labels for _, labels in made.values()))
        return self.described(
            shapes.pop(), names, {split: len(labels) for split, (_, labels) in made.items()}
        )

    def content(self, split: str) -> Content:
        images, labels = _arrays_of(self, split)
        return Content([images], labels, self.describe().class_names)

    def _wrong(self, problem: str) -> RbError:
        return RbError(
            f"The data set {self.name} is not valid: {problem}. For each split, `arrays` must return"
            " images uint8 (N, C, H, W), and one label for each image, counted from 0."
        )


@functools.lru_cache(maxsize=4)
def _arrays_of(data: ArrayDataset, split: str) -> tuple[np.ndarray, np.ndarray]:
    """The arrays of a split: images uint8 (N, C, H, W), labels int64 (N,). They are computed only once.

    Raises RbError if the arrays have another shape or type, or if the user's function fails.
    """
    if split not in data.splits:
        raise data.unknown_split(split, data.splits)
    try:
        made = data.arrays(split)
    except RbError:
        raise
    except Exception as error:
        raise RbError(
            f"The data set {data.name} raised {type(error).__name__}: {shown(str(error), 200)}"
        ) from error
    if not isinstance(made, tuple) or len(made) != 2:
        raise data._wrong(f"`arrays` returned {type(made).__name__}, no pair")
    images, labels = np.asarray(made[0]), np.asarray(made[1])
    if images.dtype != np.uint8 or images.ndim != 4 or not len(images):
        raise data._wrong(f"its images are {images.dtype} {images.shape}")
    if labels.dtype.kind not in "iu" or labels.shape != (len(images),):
        raise data._wrong(f"its labels are {labels.dtype} {labels.shape} for {len(images)} images")
    return np.ascontiguousarray(images), labels.astype(np.int64)
