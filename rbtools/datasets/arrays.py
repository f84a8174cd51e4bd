"""The base of data sets that a user writes: a function makes the arrays of a split."""

from __future__ import annotations

import functools
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from rbtools.datasets import content_hash
from rbtools.datasets.base import Dataset, DatasetSource, Description, HashCache, numbered
from rbtools.errors import RbError, shown
from rbtools.lazy import np


@dataclass(frozen=True, kw_only=True)
class ArrayDataset(DatasetSource):
    """A data set in memory, whose splits `arrays` makes; all else has a default.

    `argument` is what follows the class in python:MODULE:CLASS:ARGUMENT, or None. `classes` are their names;
    without them the highest label of all splits gives their number. Stored results are keyed by the content:
    they are found again while `arrays` returns the same.
    """

    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    classes: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def arrays(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Images uint8 (N, C, H, W) and their labels, whole numbers (N,) from 0 on."""

    def describe(self) -> Description:
        """Makes all splits."""
        made = {split: _arrays_of(self, split) for split in self.splits}
        shapes = {images.shape[1:] for images, _ in made.values()}
        if len(shapes) > 1:
            raise self._wrong(f"its splits have images of different shapes: {sorted(shapes)}")
        names = list(self.classes)
        if not names:
            highest = max(int(labels.max(initial=-1)) for _, labels in made.values())
            names = numbered(self.name, highest + 1)
        return self.described(
            shapes.pop(), names, {split: len(labels) for split, (_, labels) in made.items()}
        )

    def fingerprint(self, split: str, cache: HashCache | None = None) -> str:
        images, labels = _arrays_of(self, split)
        return content_hash.pixels_hash(images.shape, [images], labels)

    def load(self, split: str) -> Dataset:
        return self.loaded(split, *_arrays_of(self, split), self.describe().class_names)

    def _wrong(self, problem: str) -> RbError:
        return RbError(
            f"The data set {self.name} is no data set: {problem}. Expected from `arrays` for a split: images"
            " uint8 (N, C, H, W), and a label from 0 on for each."
        )


@functools.lru_cache(maxsize=4)
def _arrays_of(data: ArrayDataset, split: str) -> tuple[np.ndarray, np.ndarray]:
    """The arrays of a split, made once: images uint8 (N, C, H, W), labels int64 (N,).

    Raises RbError for other arrays, and if the user's function fails.
    """
    if split not in data.splits:
        raise data.unknown_split(split, data.splits)
    try:
        made = data.arrays(split)
    except RbError:
        raise
    except Exception as error:
        raise RbError(
            f"The data set {data.name} stopped with {type(error).__name__}: {shown(str(error), 200)}"
        ) from error
    if not isinstance(made, tuple) or len(made) != 2:
        raise data._wrong(f"`arrays` returned {type(made).__name__}, no pair")
    images, labels = np.asarray(made[0]), np.asarray(made[1])
    if images.dtype != np.uint8 or images.ndim != 4 or not len(images):
        raise data._wrong(f"its images are {images.dtype} {images.shape}")
    if labels.dtype.kind not in "iu" or labels.shape != (len(images),):
        raise data._wrong(f"its labels are {labels.dtype} {labels.shape} for {len(images)} images")
    return np.ascontiguousarray(images), labels.astype(np.int64)
