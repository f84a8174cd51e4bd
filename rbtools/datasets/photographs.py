"""Published data sets whose images are files: cinic10, tinyimagenet, imagenet50 and imagenet."""

from __future__ import annotations

import json
import os
import re
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import ClassVar, NamedTuple

from rbtools.datasets import cifar
from rbtools.datasets.base import Description
from rbtools.datasets.preprocessing import Preprocessing, parse
from rbtools.datasets.published_files import PublishedDataset
from rbtools.datasets.tree import Tree, TreeDataset, class_folders, is_image, scan, some, split_folders
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
        """The images of a split. Raises NotHere if no files are found."""

    def parts(self, split: str) -> dict[Path, str | None]:
        return {self.find(split).root: None}

    def image_shape(self, tree: Tree) -> tuple[int, int, int]:
        return self._shape

    def tree(self, split: str) -> Tree:
        self.known(split)
        tree = self.find(split)
        if len(tree.classes) != len(self.class_names):
            raise RbError(
                f"The folder {tree.root} has {len(tree.classes)} class folders ({some(tree.classes)}), but"
                f" the data set {self.name} has {len(self.class_names)} classes. For images of your own, use"
                " imagefolder:PATH."
            )
        if len(tree) != self.sizes[split] and not self.any_number:
            raise RbError(
                f"The folder {tree.root} has {len(tree)} images, but the split {split} of the data set"
                f" {self.name} has {self.sizes[split]}. Unpack it again. For images of your own, use"
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
        """Describe the data set, with the sizes and class names of the user's folder if there is one."""
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
        raise self.not_here(split, f"{self.folders[0]}/wnids.txt with train and val next to it")


@dataclass(frozen=True)
class RenamedTree(Tree):
    """Images that are named <class>/<file>, so that every folder layout has the same fingerprint.

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
                raise RbError(f"The image {path} of tinyimagenet in {root} has {problem}. Unpack it again.")
            images.append((label_of[wnid], f"{wnid}/{name}", path))
    images.sort()
    files = [(label, name) for label, name, _ in images]
    return RenamedTree(root, classes, files, {}, [path for *_, path in images])


# --- imagenet: ILSVRC2012 in the user's folders, with the class indices of all 1,000 classes -------------

WNID = re.compile(r"n\d{8}")
# The number of a validation image in its file name, which the wnid may follow.
NUMBER = re.compile(r"(?:.*/)?[^/]*_(\d{8})(?:_n\d{8})?\.\w+")
SUBSET = "robustbench"  # the split of the 5,000 images that RobustBench evaluates on


class Facts(NamedTuple):
    """The wnids (WordNet IDs) by class index, and the numbers of RobustBench's validation images."""

    wnids: list[str]
    robustbench: list[int]


@cache
def facts() -> Facts:
    return Facts(**json.loads(Path(__file__).with_name("imagenet.json").read_text("utf-8")))


@dataclass(frozen=True, kw_only=True)
class ImageNet(Photographs):
    """ILSVRC2012 in one folder per wnid (WordNet ID), as torchvision unpacks it.

    Images of any size are scaled and cropped when they are used. A split may have any number of images, and a
    folder with only some classes keeps the class indices of all 1,000 classes. The split `robustbench`
    consists of the 5,000 validation images that RobustBench uses.
    """

    shape = (3, 224, 224)
    sizes: ClassVar[dict[str, int]] = {"train": 1_281_167, "test": 50_000, SUBSET: 5_000}
    normalization = "imagenet"
    class_names = tuple(str(number) for number in range(1000))
    folders = ("imagenet", "ImageNet", "imagenet-1k", "ILSVRC2012", "ILSVRC/Data/CLS-LOC", ".")
    kind = "imagenet 1"
    usual = Preprocessing(224, 256)

    def __post_init__(self) -> None:
        if self.argument is not None:
            try:
                options = parse(self.argument).options
            except RbError:
                options = "--resize 256 --crop 224"
            raise RbError(
                f"The data set imagenet takes no argument, found '{self.name}'. To scale and crop the images,"
                f" use options: --dataset imagenet {options}."
            )

    def describe(self) -> Description:
        """The published description, with the sizes of the user's folders if they exist."""
        about = replace(super().describe(), class_names=facts().wnids)
        trees = {split: self.find(split) for split in ("train", "test") if self._place(split) is not None}
        if not trees:
            return about
        sizes = {split: len(tree) for split, tree in trees.items()}
        if "test" in trees:
            sizes[SUBSET] = len(_published_subset(trees["test"]))
        notes = tuple(
            f"{tree.root} has {len(tree.classes)} of the 1,000 classes of ImageNet: the network's"
            " other logits count as wrong answers."
            for tree in trees.values()
            if len(tree.classes) < len(facts().wnids)
        )
        return replace(about, sizes={key: size for key, size in sizes.items() if size}, notes=notes)

    def names(self, tree: Tree) -> list[str]:
        return facts().wnids

    def find(self, split: str) -> Tree:
        folder = self._place("train" if split == "train" else "test")
        if folder is None:
            raise self.not_here(split, "imagenet/val/n01440764/*.JPEG")
        if not class_folders(folder):
            raise RbError(
                f"The folder {folder} has no class folders. Expected one folder per wnid (n01440764 ...), as"
                " torchvision.datasets.ImageNet creates them from the official archives."
            )
        tree = scan(folder)
        strange = [name for name in tree.classes if name not in facts().wnids]
        if strange:
            raise RbError(
                f"The folder {folder} has the class folders {some(strange)}, which are not wnids of"
                " ImageNet's 1,000 classes (such as n01440764). For images of your own, use imagefolder:PATH."
            )
        if split == SUBSET:
            return replace(tree, files=[tree.files[position] for position in _published_subset(tree)])
        return tree

    def tree(self, split: str) -> Tree:
        self.known(split)
        tree = self.find(split)
        if not len(tree):
            raise RbError(f"The folder {tree.root} has none of the images of the split {split}.")
        return tree

    def _place(self, split: str) -> Path | None:
        """The folder of a split in one of the usual `folders`; such a folder may itself be `test`."""
        names = ("train",) if split == "train" else ("val", "validation", "test")
        roots = [self.home / folder for folder in self.folders if (self.home / folder).is_dir()]
        for root in roots:
            if there := [root / name for name in names if (root / name).is_dir()]:
                return there[0]
        itself = (root for root in roots if any(map(WNID.fullmatch, class_folders(root))))
        return next(itself, None) if split == "test" else None


def _published_subset(tree: Tree) -> list[int]:
    wanted = set(facts().robustbench)
    numbers = (NUMBER.fullmatch(name) for _, name in tree.files)
    return [position for position, match in enumerate(numbers) if match and int(match[1]) in wanted]
