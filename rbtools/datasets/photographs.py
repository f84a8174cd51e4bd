"""Published data sets that come as image files: cinic10, imagenet50 and tinyimagenet."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from rbtools.datasets import cifar
from rbtools.datasets.base import Description
from rbtools.datasets.decode import Scaling
from rbtools.datasets.published_files import PublishedDataset
from rbtools.datasets.tree import Tree, TreeDataset, is_image, scan, some, split_folders
from rbtools.errors import RbError
from rbtools.plain_files import read_text


@dataclass(frozen=True, kw_only=True)
class Photographs(PublishedDataset, TreeDataset):
    """The base of published data sets that come as image files."""

    @abstractmethod
    def found(self, split: str) -> Tree:
        """The files of a split. Raises NotHere where they were not found."""

    def parts(self, split: str) -> dict[Path, str | None]:
        return {self.found(split).root: None}

    def image_shape(self, tree: Tree) -> tuple[int, int, int]:
        return self.shape

    def tree(self, split: str) -> Tree:
        """The files, after a check of the classes and of their number."""
        self.known(split)
        tree = self.found(split)
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

    def found(self, split: str) -> Tree:
        for folder in self.folders:
            # The class folder distinguishes it from other data whose splits are in the data folder itself.
            if (self.home / folder / split / self.class_names[0]).is_dir():
                return scan(self.home / folder / split)
        wanted = f"{self.folders[0]}/{split}/{self.class_names[0]}/*.png"
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
    resize: ClassVar[Scaling | None] = Scaling(256, only_others=True)
    kind: ClassVar[str] = "imagenet50 1"

    def describe(self) -> Description:
        """The published description, with sizes and class names of the user's folder if it exists."""
        about, folders = super().describe(), self._splits()
        if not folders:
            return about
        trees = {split: scan(folder) for split, folder in folders.items()}
        sizes = {split: len(tree) for split, tree in trees.items()}
        return replace(about, sizes=sizes, class_names=next(iter(trees.values())).classes)

    def found(self, split: str) -> Tree:
        folders = self._splits()
        if split not in folders:
            layout = f"{self.folders[0]}/train/<class>/*.JPEG and {self.folders[0]}/val/<class>/*.JPEG"
            raise self.not_here(split, layout)
        return scan(folders[split])

    def check_count(self, split: str, tree: Tree) -> None:
        """Any number is allowed."""

    def _splits(self) -> dict[str, Path]:
        """split -> its existing folder; `val` is used if there is no `test`."""
        folder = next(filter(Path.is_dir, (self.home / name for name in self.folders)), None)
        return {} if folder is None else split_folders(str(folder))


# --- tinyimagenet ---------------------------------------------------------------------------------

FOLDER = "tiny-imagenet-200"
ANNOTATIONS = "val_annotations.txt"


@dataclass(frozen=True)
class Placed(Tree):
    """A tree whose images are at `places` below its root.

    Images are named <class>/<file>, so that all layouts have the same names and fingerprint.
    """

    places: list[str] = field(default_factory=list)

    def path(self, index: int) -> str:
        return os.path.join(self.root, self.places[index])


@dataclass(frozen=True, kw_only=True)
class TinyImageNet(Photographs):
    """200 classes of ImageNet at 64x64 (Stanford's course CS231n).

    The test images have no labels, so the 10,000 validation images are the test split, as usual. The classes
    are the WordNet numbers in alphabetical order, as torchvision's ImageFolder takes them.
    """

    shape: ClassVar[tuple[int, int, int]] = (3, 64, 64)
    sizes: ClassVar[dict[str, int]] = {"train": 100_000, "test": 10_000}
    normalization: ClassVar[str] = "tinyimagenet"
    # Their names are in the data (wnids.txt).
    class_names: ClassVar[tuple[str, ...]] = tuple(str(number) for number in range(200))
    folders: ClassVar[tuple[str, ...]] = (
        FOLDER,
        f"tinyimagenet/{FOLDER}",
        "tinyimagenet",
        "tiny-imagenet",
        ".",
    )

    def found(self, split: str) -> Tree:
        for folder in self.folders:
            root = self.home / folder
            if (root / "wnids.txt").is_file():
                return _tree(root, split)
        raise self.not_here(split, f"{FOLDER}/wnids.txt with train and val beside it")


def _tree(root: Path, split: str) -> Placed:
    """The images of a split: by class, then by name.

    In the official layout the validation images are in one folder, with their classes in a list; in many
    copies they are sorted into class folders.
    """
    classes = sorted(read_text(root / "wnids.txt").split())
    number = {wnid: place for place, wnid in enumerate(classes)}
    part = "val" if split == "test" else "train"
    # Lines such as `val_0.JPEG n03444034 0 32 44 62` with tabs: file -> class.
    listed = root / part / ANNOTATIONS
    lines = read_text(listed).splitlines() if listed.is_file() else []
    class_of = {fields[0]: fields[1] for line in lines if len(fields := line.split("\t")) > 1}
    entries = []
    for folder, _, names in os.walk(root / part):
        first = Path(folder).relative_to(root / part).parts[:1]
        for file in filter(is_image, names):
            name = Path(folder, file).relative_to(root).as_posix()
            wnid = class_of.get(file) if part == "val" and first == ("images",) else "".join(first)
            if wnid not in number:
                problem = f"the class '{wnid}', not in wnids.txt" if wnid else f"no class in {ANNOTATIONS}"
                raise RbError(f"The image {name} of tinyimagenet in {root} has {problem}. Get the data anew.")
            entries.append((number[wnid], f"{wnid}/{file}", name))
    entries.sort()
    files = [(position, name) for position, name, _ in entries]
    return Placed(root, classes, files, {}, [name for *_, name in entries])
