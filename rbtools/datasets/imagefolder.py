"""imagefolder:PATH, the user's own images: PATH/train/<class>/* and PATH/test/<class>/*."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rbtools.datasets import classmap, content_hash, decode, streaming
from rbtools.datasets.base import Cache, Dataset, DatasetSource, Description
from rbtools.datasets.tree import Tree, scan, some, split_folders
from rbtools.errors import RbError
from rbtools.lazy import torch

HASH_CHUNK = 64


@dataclass(frozen=True, kw_only=True)
class ImageFolder(DatasetSource):
    """A folder of images, with the pixels, order and labels of torchvision's ImageFolder.

    Class folders in alphabetical order are the labels 0, 1, ... unless a class map says otherwise. `val` is
    used if there is no `test`; a PATH that holds the class folders itself is `test`. All images are converted
    to RGB, also greyscale ones, and must have one size. Unlike torchvision it skips hidden files and folders,
    and refuses images of more than 8 bits a channel. PATH is relative to the working directory.
    """

    def __post_init__(self) -> None:
        if not self.argument:
            raise RbError(
                f"The data set '{self.name}' names no folder. Write imagefolder:PATH, where PATH holds train"
                " and test, each with a folder for each class."
            )

    def describe(self) -> Description:
        """Counts the files and opens the first image of each split only."""
        folders = split_folders(self._path)
        trees = {split: scan(folder) for split, folder in folders.items()}
        (path, size), *others = [(tree.path(0), decode.size_of(tree, 0)) for tree in trees.values()]
        for other, other_size in others:
            if other_size != size:
                raise decode.mixed_sizes(path, size, other, other_size)
        first = next(iter(trees.values()))
        return Description(
            name=self.name,
            shape=(3, *size),
            classes=len(first.classes),
            class_names=self._class_names(first),
            sizes={split: len(tree.files) for split, tree in trees.items()},
            skipped=sum(tree.skipped for tree in trees.values()),
            notes=self._notes(folders, first),
        )

    def load(self, split: str) -> Dataset:
        """Raises RbError naming the file that is unreadable or of another size."""
        tree = self._tree(split)
        return labelled(self.name, split, tree, self._class_names(tree), (3, *decode.size_of(tree, 0)))

    def fingerprint(self, split: str, cache: Cache | None = None) -> str:
        """Covers the class names in the model's order, and each file's path in the split and its bytes."""
        tree = self._tree(split)
        return fingerprint(tree, self._class_names(tree), cache)

    @property
    def _path(self) -> str:
        return self.argument or ""

    def _notes(self, folders: dict[str, Path], tree: Tree) -> tuple[str, ...]:
        if folders.get("test") != Path(self._path).expanduser():
            return ()
        return (
            f"{self._path} holds the class folders {some(tree.classes)} and neither train nor test:"
            " its images are taken for the split test.",
        )

    def _tree(self, split: str) -> Tree:
        folders = split_folders(self._path)
        if split not in folders:
            if any(folder.name == split for folder in folders.values()):
                raise RbError(
                    f"The folder {split} of {self.name} serves as its test split. Ask for --split test."
                )
            raise self.unknown_split(split, folders)
        return scan(folders[split])

    def _class_names(self, tree: Tree) -> list[str]:
        """The class folders in the order of the labels."""
        return tree.classes if self.class_map is None else classmap.read(self.class_map, tree.classes)


def labelled(
    name: str,
    split: str,
    tree: Tree,
    class_names: list[str],
    shape: tuple[int, int, int],
    resize: int | decode.Scaling | None = None,
) -> Dataset:
    """The images of a tree, decoded now if they fit into memory, else when they are indexed.

    `resize`: see `decode.decode`. With a `Scaling` they are always decoded when they are indexed.
    """
    label_of = [class_names.index(one) for one in tree.classes]
    whole, lazy = (len(tree), *shape), isinstance(resize, decode.Scaling)
    images = (streaming.Streamed if lazy else streaming.images)(
        whole, lambda ids, out: decode.decode(tree, ids, out, resize=resize)
    )
    if isinstance(images, streaming.Streamed) and resize is None:
        decode.check_sizes(tree)  # report a wrong size now, not during the work
    return Dataset(
        name=name,
        split=split,
        classes=len(class_names),
        class_names=class_names,
        images=images,
        labels=torch.tensor([label_of[position] for position, _ in tree.files]),
    )


def fingerprint(tree: Tree, class_names: list[str], cache: Cache | None, kind: str = "imagefolder 1") -> str:
    """The hash of a tree: the classes, then each file's path in the split and its bytes.

    Raises RbError naming a file that cannot be read.
    """
    what = [kind, os.path.realpath(tree.root), str(len(class_names)), *class_names]
    try:
        return content_hash.remembered(cache, what, tree.stored(), lambda: _hash(tree, class_names, kind))
    except OSError as error:
        raise RbError(
            f"The image {error.filename or tree.root} cannot be read ({error.strerror or error})."
            " Repair it, or remove it from the folder."
        ) from None


def _hash(tree: Tree, class_names: list[str], kind: str) -> str:
    total = hashlib.sha256(content_hash.lines(f"rbtools {kind}", str(len(class_names)), *class_names))
    for line in _file_lines(tree):
        total.update(line)
    return total.hexdigest()


def _file_lines(tree: Tree) -> Iterator[bytes]:
    starts = range(0, len(tree.files), HASH_CHUNK)

    def work(start: int) -> list[bytes]:
        stop = min(start + HASH_CHUNK, len(tree.files))
        part = tree.gathered(range(start, stop))
        return [content_hash.lines(tree.files[i][1], _image_hash(part, i)) for i in range(start, stop)]

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for lines in pool.map(work, starts):
            yield from lines


def _image_hash(tree: Tree, index: int) -> str:
    with tree.open(index) as file:
        return hashlib.sha256(file.read()).hexdigest()
