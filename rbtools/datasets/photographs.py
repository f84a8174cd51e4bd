"""Published data sets whose images are files: cinic10, imagenet50 and tinyimagenet."""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from rbtools.datasets import cifar
from rbtools.datasets.base import Description
from rbtools.datasets.preprocessing import Preprocessing
from rbtools.datasets.published_files import PublishedDataset
from rbtools.datasets.tree import Tree, TreeDataset, is_image, scan, some, split_folders
from rbtools.errors import RbError
from rbtools.plain_files import read_text


@dataclass(frozen=True, kw_only=True)
class Photographs(PublishedDataset, TreeDataset):
    any_number: ClassVar[bool] = False  # whether the number of images may differ from the published one

    def describe(self) -> Description:
        about = super().describe()
        return replace(about, shape=self._shape)

    @property
    def _shape(self) -> tuple[int, int, int]:
        return self.shape if self.scaled is None else (3, self.scaled.crop, self.scaled.crop)

    @abstractmethod
    def find(self, split: str) -> Tree:
        """Raises NotHere if no files are found."""

    def parts(self, split: str) -> dict[Path, str | None]:
        return {self.find(split).root: None}

    def image_shape(self, tree: Tree) -> tuple[int, int, int]:
        return self._shape

    def tree(self, split: str) -> Tree:
        self.known(split)
        tree = self.find(split)
        if len(tree.classes) != len(self.class_names):
            raise RbError(
                f"The folder {tree.root} has {len(tree.classes)} class folders ({some(tree.classes)}), and"
                f" the data set {self.name} has {len(self.class_names)} classes. For images of your own use"
                " imagefolder:PATH."
            )
        if len(tree) != self.sizes[split] and not self.any_number:
            raise RbError(
                f"The folder {tree.root} holds {len(tree)} images, and the split {split} of the data set"
                f" {self.name} has {self.sizes[split]}. Unpack it again; for images of your own use"
                " imagefolder:PATH."
            )
        return tree


@dataclass(frozen=True, kw_only=True)
class Cinic10(Photographs):
    """CINIC-10 adds ImageNet images to CIFAR-10, with the same classes; the images are PNG files.

    Darlow et al., "CINIC-10 is not ImageNet or CIFAR-10", 2018.
    """

    shape = (3, 32, 32)
    sizes: ClassVar[dict[str, int]] = {"train": 90_000, "valid": 90_000, "test": 90_000}
    normalization = "cinic10"
    class_names = cifar.Cifar10.class_names
    folders = ("CINIC-10", "cinic10", "cinic-10", "CINIC10", ".")

    def find(self, split: str) -> Tree:
        for folder in self.folders:
            # The class folder distinguishes CINIC-10 from other data with splits directly in the data folder.
            if (self.home / folder / split / self.class_names[0]).is_dir():
                return scan(self.home / folder / split)
        raise self.not_here(split, f"{self.folders[0]}/{split}/{self.class_names[0]}/*.png")


@dataclass(frozen=True, kw_only=True)
class ImageNet50(Photographs):
    """ImageNet-50 consists of fifty classes of ImageNet at 224x224, in a folder that the user provides.

    The list of the fifty classes was never published, so the class folders in alphabetical order are the
    classes. The number of images is not checked. If an image has another size, its shorter side is scaled to
    256 pixels and its centre is cropped.
    """

    shape = (3, 224, 224)
    sizes: ClassVar[dict[str, int]] = {"train": 64_000, "test": 2_500}
    normalization = "imagenet"
    class_names = tuple(str(number) for number in range(50))
    folders = ("imagenet50", "imagenet-50", "ImageNet-50", "ImageNet50")
    odd = Preprocessing(224, 256)
    kind = "imagenet50 1"
    any_number: ClassVar[bool] = True

    def describe(self) -> Description:
        """The sizes and class names are those of the user's folder if there is one."""
        about = super().describe()
        trees = {split: scan(folder) for split, folder in self._split_folders().items()}
        if not trees:
            return about
        sizes = {split: len(tree) for split, tree in trees.items()}
        return replace(about, sizes=sizes, class_names=next(iter(trees.values())).classes)

    def find(self, split: str) -> Tree:
        folders = self._split_folders()
        if split not in folders:
            layout = f"{self.folders[0]}/train/<class>/*.JPEG and {self.folders[0]}/val/<class>/*.JPEG"
            raise self.not_here(split, layout)
        return scan(folders[split])

    def _split_folders(self) -> dict[str, Path]:
        roots = [self.home / name for name in self.folders if (self.home / name).is_dir()]
        return split_folders(str(roots[0])) if roots else {}


@dataclass(frozen=True, kw_only=True)
class TinyImageNet(Photographs):
    """Tiny ImageNet consists of 200 classes of ImageNet at 64x64 (Stanford's course CS231n).

    The official test images have no labels, so the 10,000 validation images are the test split, as usual. The
    class names are WordNet IDs in alphabetical order, as in torchvision's ImageFolder.
    """

    shape = (3, 64, 64)
    sizes: ClassVar[dict[str, int]] = {"train": 100_000, "test": 10_000}
    normalization = "tinyimagenet"
    # The names of the classes are in the data (wnids.txt).
    class_names = tuple(str(number) for number in range(200))
    folders = ("tiny-imagenet-200", "tinyimagenet/tiny-imagenet-200", "tinyimagenet", "tiny-imagenet", ".")

    def find(self, split: str) -> Tree:
        for root in (self.home / folder for folder in self.folders):
            if (root / "wnids.txt").is_file():
                return _tiny_imagenet(root, "val" if split == "test" else "train")
        raise self.not_here(split, f"{self.folders[0]}/wnids.txt with train and val beside it")


@dataclass(frozen=True)
class RenamedTree(Tree):
    """Images that are named <class>/<file> in every folder layout, so that the fingerprint is the same.

    `paths` contains the path of each image in `root`.
    """

    paths: list[str]

    def path(self, index: int) -> str:
        return os.path.join(self.root, self.paths[index])


def _tiny_imagenet(root: Path, part: str) -> RenamedTree:
    """The images in `train` or `val`, sorted by class and then by file name.

    In the official archive, all validation images are in val/images, and a text file lists their classes. In
    many copies, the validation images are in class folders.
    """
    classes = sorted(read_text(root / "wnids.txt").split())
    label_of = {wnid: label for label, wnid in enumerate(classes)}
    # Lines of file, class and box, separated by tabs: val_0.JPEG n03444034 0 32 44 62.
    listed = root / part / "val_annotations.txt"
    lines = read_text(listed).splitlines() if listed.is_file() else []
    wnid_of = {fields[0]: fields[1] for line in lines if len(fields := line.split("\t")) > 1}
    images = []
    for folder, _, names in os.walk(root / part):
        top = "".join(Path(folder).relative_to(root / part).parts[:1])
        for name in filter(is_image, names):
            path = Path(folder, name).relative_to(root).as_posix()
            wnid = wnid_of.get(name) if (part, top) == ("val", "images") else top
            if wnid not in label_of:
                problem = f"the class '{wnid}', not in wnids.txt" if wnid else f"no class in {listed.name}"
                raise RbError(f"The image {path} of tinyimagenet in {root} has {problem}. Get the data anew.")
            images.append((label_of[wnid], f"{wnid}/{name}", path))
    images.sort()
    files = [(label, name) for label, name, _ in images]
    return RenamedTree(root, classes, files, {}, [path for *_, path in images])
