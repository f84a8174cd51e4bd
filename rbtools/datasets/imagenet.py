"""imagenet: ILSVRC2012 in the user's folders, with the class indices of all 1,000 classes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import ClassVar, NamedTuple

from rbtools.datasets.base import Description
from rbtools.datasets.photographs import Photographs
from rbtools.datasets.preprocessing import Preprocessing, parse
from rbtools.datasets.tree import Tree, class_folders, scan, some
from rbtools.errors import RbError

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
                f"The data set imagenet takes no argument, found '{self.name}'. Options determine how images"
                f" are scaled and cropped: --dataset imagenet {options}."
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
                f"The folder {folder} has no class folders. Expected folders of wnids (n01440764 ...), into"
                " which torchvision.datasets.ImageNet sorts the official archives."
            )
        tree = scan(folder)
        strange = [name for name in tree.classes if name not in facts().wnids]
        if strange:
            raise RbError(
                f"The folder {folder} has the class folders {some(strange)}, which are not wnids of"
                " ImageNet's 1,000 classes (such as n01440764). For images of your own use imagefolder:PATH."
            )
        if split == SUBSET:
            return replace(tree, files=[tree.files[position] for position in _published_subset(tree)])
        return tree

    def tree(self, split: str) -> Tree:
        self.known(split)
        tree = self.find(split)
        if not len(tree):
            raise RbError(f"The folder {tree.root} holds none of the images of the split {split}.")
        return tree

    def _place(self, split: str) -> Path | None:
        """The folder of a split in one of the usual `folders`, which may itself be the split `test`."""
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
