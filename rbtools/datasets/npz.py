"""npz:PATH, the user's own arrays: images and labels in an .npz archive."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rbtools.datasets import npy
from rbtools.datasets.arrays import Content, ImageArrays, Stamped
from rbtools.datasets.base import Description, NotHere, damaged, numbered
from rbtools.errors import RbError, shown
from rbtools.lazy import np
from rbtools.plain_files import opened

EXPECTED = (
    "an .npz file with `test_images` and `test_labels` (and train_images, train_labels), or `images` and"
    " `labels`, or `x_test` and `y_test`: uint8 images (N, H, W), (N, H, W, C) or (N, C, H, W), and whole"
    " numbers as labels"
)
# Names of the images and labels of each split, as used by Keras, MedMNIST and others.
_SPLITS = {
    "train": ("train_images train_labels", "x_train y_train", "X_train y_train"),
    "test": ("test_images test_labels", "x_test y_test", "X_test y_test", "images labels", "x y", "X y"),
    "val": ("val_images val_labels", "x_val y_val", "X_val y_val"),
}


@dataclass(frozen=True, kw_only=True)
class Npz(ImageArrays):
    """An .npz file with images and labels for each split. Plain `images` and `labels` are the test split.

    The number of classes is determined by `class_names` (an array of strings) or `classes` (a number) in the
    file, otherwise by the highest label.
    """

    def __post_init__(self) -> None:
        if not self.argument:
            raise RbError(
                f"The data set '{self.name}' does not name a file. Write npz:PATH; expected {EXPECTED}."
            )

    def describe(self) -> Description:
        archive = self._opened()
        shapes = {split: _layout(archive, names[0])[0] for split, names in archive.splits.items()}
        first = next(iter(shapes.values()))
        if any(shape[1:] != first[1:] for shape in shapes.values()):
            sizes = ", ".join(f"{split} {'x'.join(map(str, shape[1:]))}" for split, shape in shapes.items())
            raise archive.wrong(f"its splits have images of different shapes: {sizes}")
        sizes_of = {split: shape[0] for split, shape in shapes.items()}
        return self.described(first[1:], archive.class_names(), sizes_of)

    def content(self, split: str) -> Content:
        archive = self._opened()
        if split not in archive.splits:
            raise self.unknown_split(split, archive.splits)
        of_images, of_labels = archive.splits[split]
        _, axes = _layout(archive, of_images)
        images, labels = archive.array(of_images), archive.labels(of_labels)
        if len(images) != len(labels):
            raise archive.wrong(f"it has {len(images)} images and {len(labels)} labels in the split {split}")
        images = images[:, None] if images.ndim == 3 else images.transpose(axes)
        return Content([images], labels, archive.class_names())

    def stamped(self, split: str) -> Stamped:
        path = self._opened().path
        return ("npz", split, os.path.realpath(path)), [("", path)]

    def _opened(self) -> _Archive:
        return _Archive(Path(self.argument or "").expanduser())


class _Archive:
    """The arrays of an .npz file. `splits` maps each split to the names of its images and its labels."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_dir() or not path.exists():
            problem = "is a folder" if path.is_dir() else "does not exist"
            raise NotHere(f"The file {path} {problem}. Expected {EXPECTED}.")
        self._names: list[str] = self._read(lambda file: file.files, EXPECTED)
        self.splits: dict[str, tuple[str, str]] = {}
        for split, spellings in _SPLITS.items():
            pairs = ((images, labels) for images, labels in map(str.split, spellings))
            arrays = next((pair for pair in pairs if all(name in self._names for name in pair)), None)
            if arrays is not None:
                self.splits[split] = arrays
        if not self.splits:
            raise self.wrong(f"it contains the arrays {shown(', '.join(self._names), 300) or '(none)'}")

    def wrong(self, problem: str) -> RbError:
        return RbError(f"The file {self.path} is not a data set: {problem}. Expected {EXPECTED}.")

    def _read(self, work: Callable[[Any], Any], expected: str) -> Any:
        try:
            with opened(self.path) as stream, np.load(stream, allow_pickle=False) as file:
                return work(file)
        except Exception as error:  # from zip, zlib, NumPy, or Python's parser of headers
            raise damaged(self.path, expected, error) from None

    def header(self, name: str) -> npy.Header:
        def work(file: Any) -> npy.Header:
            with file.zip.open(f"{name}.npy") as member:
                return npy.header(member)

        return cast(npy.Header, self._read(work, f"{name} to be an array of numbers"))

    def array(self, name: str) -> np.ndarray:
        def work(file: Any) -> np.ndarray:
            array: np.ndarray = file[name]
            if not array.dtype.itemsize:
                raise ValueError("its values take no bytes, so their number is not limited")
            return array

        return cast("np.ndarray", self._read(work, f"{name} to be an array of numbers"))

    def labels(self, name: str) -> np.ndarray:
        """The labels as int64 (N,). In the file their shape is (N,) or (N, 1)."""
        array = self.array(name)
        if array.dtype.kind not in "iu" or array.ndim == 0 or array.size != len(array):
            problem = f"`{name}` is {array.dtype} {array.shape}"
            raise self.wrong(f"{problem}, which is not a whole number for each image")
        return array.reshape(-1).astype(np.int64)

    def class_names(self) -> list[str]:
        """The class names in the file, or otherwise the numbers from 0 to the highest label of all splits."""
        if "class_names" in self._names:
            return [str(name) for name in self.array("class_names").reshape(-1)]
        if "classes" in self._names:
            count = self.array("classes").reshape(-1)
            if count.dtype.kind not in "iu" or not len(count):
                raise self.wrong("`classes` is not a whole number")
            return numbered(str(self.path), [count[:1].astype(np.int64) - 1])
        return numbered(str(self.path), (self.labels(labels) for _, labels in self.splits.values()))


def _layout(archive: _Archive, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape (N, C, H, W) of an array of images, and the order of axes that gives this shape."""
    shape, _, dtype = archive.header(name)
    if dtype != np.uint8:
        hint = "; convert images in [0, 1] with (255 * images).round().astype('uint8')"
        raise archive.wrong(f"`{name}` is {dtype}{hint if dtype.kind == 'f' else ''}")
    if len(shape) == 3 and shape[0]:
        return (shape[0], 1, *shape[1:]), (0, 1, 2)
    if len(shape) == 4 and shape[0]:
        last, second = shape[3] in (1, 3), shape[1] in (1, 3)
        if last and not second:
            return (shape[0], shape[3], shape[1], shape[2]), (0, 3, 1, 2)
        if second and not last:
            return shape, (0, 1, 2, 3)
    raise archive.wrong(f"`{name}` has the shape {shape}, where the axis with 1 or 3 channels is ambiguous")
