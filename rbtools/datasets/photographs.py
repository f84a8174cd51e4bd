"""Published data sets that come as image files in class folders: cinic10 and imagenet50."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from rbtools.datasets import cifar
from rbtools.datasets.base import Cache, Dataset, Description, NotHere
from rbtools.datasets.imagefolder import fingerprint, labelled
from rbtools.datasets.published_files import DataFile, PublishedDataset, Remote
from rbtools.datasets.tree import Tree, same_classes, scan, some
from rbtools.errors import RbError


@dataclass(frozen=True, kw_only=True)
class Photographs(PublishedDataset):
    """Image files of a split, decoded when loaded or, where they do not fit in memory, when used."""

    resize: ClassVar[int | None] = None
    kind: ClassVar[str] = "imagefolder 1"  # with unchanged pixels, the fingerprint is that of an image folder

    @abstractmethod
    def tree(self, split: str) -> Tree:
        """The files of a split. Raises NotHere where they were not found."""

    def parts(self, split: str) -> list[DataFile]:
        return [DataFile(self.tree(split).root)]

    def load(self, split: str) -> Dataset:
        tree = self._checked(split)
        return labelled(self.name, split, tree, tree.classes, self.shape, self.resize)

    def fingerprint(self, split: str, cache: Cache | None = None) -> str:
        """Covers the names of classes and files, and the files' bytes."""
        tree = self._checked(split)
        return fingerprint(tree, tree.classes, cache, self.kind)

    def _checked(self, split: str) -> Tree:
        self.known(split)
        tree = self.tree(split)
        if len(tree.classes) != len(self.class_names):
            raise RbError(
                f"The folder {tree.root} has {len(tree.classes)} class folders ({some(tree.classes)}), and"
                f" the data set {self.name} has {len(self.class_names)} classes. For images of your own use"
                " imagefolder:PATH."
            )
        self.check_count(split, tree)
        return tree

    def check_count(self, split: str, tree: Tree) -> None:
        """Raise RbError where files are missing, for example after an interrupted unpacking."""
        if len(tree) != self.sizes[split]:
            raise RbError(
                f"The folder {tree.root} holds {len(tree)} images, and the split {split} of the data set"
                f" {self.name} has {self.sizes[split]}. Unpack it again; for images of your own use"
                " imagefolder:PATH."
            )


@dataclass(frozen=True, kw_only=True)
class Cinic10(Photographs):
    """CINIC-10: the classes of CIFAR-10, with images of ImageNet added; PNG files.

    Darlow et al., "CINIC-10 is not ImageNet or CIFAR-10", 2018.
    """

    shape: ClassVar[tuple[int, int, int]] = (3, 32, 32)
    sizes: ClassVar[dict[str, int]] = {"train": 90_000, "valid": 90_000, "test": 90_000}
    normalization: ClassVar[str] = "cinic10"
    class_names: ClassVar[Sequence[str]] = cifar.Cifar10.class_names
    folders: ClassVar[tuple[str, ...]] = ("CINIC-10", "cinic10", "cinic-10", "CINIC10", ".")
    archive: ClassVar[Remote] = Remote(
        (
            "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
            "https://datashare.is.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
        ),
        "6ee4d0c996905fe93221de577967a372",
        "690 MB",
        "CINIC-10",
    )

    def remotes(self, split: str) -> list[Remote]:
        return [self.archive]

    def tree(self, split: str) -> Tree:
        for folder in self.folders:
            # The class folder distinguishes it from other data whose splits are in the data folder itself.
            if (self.home / folder / split / self.class_names[0]).is_dir():
                return scan(self.home / folder / split)
        wanted = f"{self.folders[0]}/{split}/{self.class_names[0]}/*.png"
        packed, target = self.found(self.archive.name), self.home / self.folders[0]
        if packed is not None:
            raise NotHere(
                f"The archive {packed} has to be unpacked, so that {self.home / wanted} is there. Add"
                f" --download, or: mkdir {target} && tar xf {packed} -C {target}"
            )
        raise self.not_here(split, wanted)


@dataclass(frozen=True, kw_only=True)
class ImageNet50(Photographs):
    """ImageNet-50: fifty classes of ImageNet at 224x224, in a folder of the user's own.

    The fifty classes were never published, so the class folders in alphabetical order are the classes, and
    there may be any number of images. An image of another size is scaled to 256 pixels on its shorter side,
    and cropped to its centre.
    """

    shape: ClassVar[tuple[int, int, int]] = (3, 224, 224)
    sizes: ClassVar[dict[str, int]] = {"train": 64_000, "test": 2_500}
    normalization: ClassVar[str] = "imagenet"
    class_names: ClassVar[Sequence[str]] = tuple(str(number) for number in range(50))
    folders: ClassVar[tuple[str, ...]] = ("imagenet50", "imagenet-50", "ImageNet-50", "ImageNet50")
    resize: ClassVar[int | None] = 256
    kind: ClassVar[str] = "imagenet50 1"

    def describe(self) -> Description:
        """The published description, with sizes and class names of the user's folder if it exists."""
        about, folders = super().describe(), self._splits()
        if not folders:
            return about
        trees = {split: scan(folder) for split, folder in folders.items()}
        sizes = {split: len(tree) for split, tree in trees.items()}
        return replace(about, sizes=sizes, class_names=next(iter(trees.values())).classes)

    def remotes(self, split: str) -> list[Remote]:
        return []

    def tree(self, split: str) -> Tree:
        folders = self._splits()
        if split not in folders:
            layout = f"{self.folders[0]}/train/<class>/*.JPEG and {self.folders[0]}/val/<class>/*.JPEG"
            raise self.not_here(split, layout)
        return scan(folders[split])

    def check_count(self, split: str, tree: Tree) -> None:
        """Any number is allowed."""

    def _splits(self) -> dict[str, Path]:
        """split -> its existing folder; `val` is used if there is no `test`."""
        splits = {}
        for split, name in (("train", "train"), ("test", "val"), ("test", "test")):
            places = (self.home / folder / name for folder in self.folders)
            place = next((place for place in places if place.is_dir()), None)
            if place is not None:
                splits[split] = place
        if len(splits) > 1:
            same_classes(splits)
        return splits
