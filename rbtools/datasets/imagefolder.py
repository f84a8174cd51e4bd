"""imagefolder:PATH, the user's own images: PATH/train/<class>/* and PATH/test/<class>/*."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rbtools.datasets import decode
from rbtools.datasets.base import MOST_CLASSES, Description, channels_of, present_in
from rbtools.datasets.tree import HIDDEN, IMAGE_ENDINGS, Tree, TreeDataset, scan, some, split_folders
from rbtools.errors import RbError, near
from rbtools.plain_files import read_text

FORMS = (
    'JSON {"cat": 0, "dog": 1} or ["cat", "dog"], or text with a line "cat 0" for each class,'
    " or with the names alone in the model's order"
)

# A name and its index: "cat 3", "cat,3", "cat: 3", "cat = 3".
_PAIR = re.compile(r"(.*[^ \t,:=])[ \t,:=]+([0-9]{1,9})")


@dataclass(frozen=True, kw_only=True)
class ImageFolder(TreeDataset):
    """A folder of images, with the same pixels, order and labels as torchvision's ImageFolder.

    The labels 0, 1, ... are assigned to the class folders in alphabetical order, or in numerical order if all
    names are integers. A class map can assign other labels. An empty folder is a class without images. If
    there is no `test`, `val` is used. If PATH itself contains the class folders, PATH is `test`. Without
    preprocessing, all images must have the same size. Images are converted to RGB, or to one channel with
    PATH:grey. Unlike in torchvision, hidden files and folders are skipped, and images with more than 8 bits
    per channel are an error.
    """

    def __post_init__(self) -> None:
        if not self.argument:
            raise RbError(
                f"The data set '{self.name}' does not name a folder. Write imagefolder:PATH, where PATH"
                " contains train and test, each with a folder for each class."
            )

    def describe(self) -> Description:
        """Count the files and, if there is no preprocessing, open only the first image of each split."""
        folders = split_folders(self._path)
        trees = {split: self._scan(folder) for split, folder in folders.items()}
        size = (self.scaled.crop,) * 2 if self.scaled else decode.one_size(trees.values())
        first = next(iter(trees.values()))
        skipped = sum((Counter(tree.skipped) for tree in trees.values()), Counter())
        class_names = self.names(first)
        there = {tree.classes[place] for tree in trees.values() for place, _ in tree.files}
        return self.described(
            (self._channels, *size),
            class_names,
            {split: len(tree.files) for split, tree in trees.items()},
            present=present_in(class_names, there),
            skipped=skipped.total(),
            notes=(*self._notes(folders, first), *_left_out(self._path, skipped)),
        )

    @property
    def kind(self) -> str:  # type: ignore[override]
        return "imagefolder 1" if self._channels == 3 else "imagefolder 1 grey"

    def image_shape(self, tree: Tree) -> tuple[int, int, int]:
        return (self._channels, *((self.scaled.crop,) * 2 if self.scaled else decode.size_of(tree, 0)))

    @property
    def _path(self) -> str:
        return channels_of(self.argument)[0]

    @property
    def _channels(self) -> int:
        return channels_of(self.argument)[1] or 3

    def _notes(self, folders: dict[str, Path], tree: Tree) -> tuple[str, ...]:
        if folders.get("test") != Path(self._path).expanduser():
            return ()
        return (
            f"{self._path} contains the class folders {some(tree.classes)}, but neither train nor test:"
            " its images are used as the split test.",
        )

    def tree(self, split: str) -> Tree:
        folders = split_folders(self._path)
        if split not in folders:
            if any(folder.name == split for folder in folders.values()):
                raise RbError(
                    f"The folder {split} of {self.name} is used as its test split. Add --split test."
                )
            raise self.unknown_split(split, folders)
        return self._scan(folders[split])

    def _scan(self, folder: Path) -> Tree:
        tree = scan(folder, may_be_empty=True)
        return tree if self.class_map is None else tree.of_classes(self.names(tree))

    def names(self, tree: Tree) -> list[str]:
        return tree.classes if self.class_map is None else read_class_map(self.class_map, tree.classes)


def _left_out(path: str, skipped: Counter[str]) -> list[str]:
    count = skipped.total() - skipped[HIDDEN]
    if not count:
        return []
    visible = [(ending, number) for ending, number in skipped.most_common() if ending != HIDDEN]
    endings = ", ".join(f"{number} {ending or 'without an ending'}" for ending, number in visible)
    return [
        f"Files left out in the class folders of {path}: {count} ({endings}). Image files must end in"
        f" {', '.join(IMAGE_ENDINGS)}; convert the files that are images."
    ]


# --- a class map: the model's index of each class folder, if the order is not alphabetical ------------


def read_class_map(file: str, folders: list[str]) -> list[str]:
    """The class names in the order of the model's outputs, read from a file that maps class names to indices.

    A class without a folder, or an index that the file leaves out, is an output of the model without images.
    `file` may also be a JSON list of class names as a string, which may leave out class folders. Raises
    RbError if the file is unreadable, does not contain a class folder, or contains an index twice.
    """
    if file.startswith("["):  # the JSON list of names that records store
        return _ordered("of the record", _from_json("of the record", file), folders)
    try:
        text = read_text(Path(file).expanduser(), "utf-8-sig")
    except FileNotFoundError:
        raise RbError(f"The class map {file} does not exist. Expected a file with {FORMS}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RbError(f"The class map {file} cannot be read ({error}). Expected {FORMS}.") from None
    pairs = _from_json(file, text) if text.lstrip()[:1] in ("{", "[") else _from_lines(file, text, folders)
    return _ordered(file, pairs, folders)


def _from_json(file: str, text: str) -> list[tuple[str, int]]:
    try:
        # As pairs, because a dict would drop a name that occurs twice.
        items: Any = json.loads(text, object_pairs_hook=lambda pairs: pairs)
    except (ValueError, RecursionError) as error:
        raise RbError(f"The class map {file} is not JSON ({error}). Expected {FORMS}.") from None
    if all(isinstance(item, str) for item in items):
        return [(name, index) for index, name in enumerate(items)]
    pairs = []
    for item in items:
        if not (isinstance(item, tuple) and isinstance(item[1], int) and not isinstance(item[1], bool)):
            raise RbError(f"The class map {file} contains {json.dumps(item)}. Expected {FORMS}.")
        pairs.append((item[0], item[1]))
    return pairs


def _from_lines(file: str, text: str, folders: list[str]) -> list[tuple[str, int]]:
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    matches = [_PAIR.fullmatch(line) for line in lines]
    # A folder may be called "class 1", so a file that contains only folder names has no indices.
    if not any(matches) or all(line in folders for line in lines):
        return [(name, index) for index, name in enumerate(lines)]
    pairs = []
    for line, match in zip(lines, matches, strict=True):
        if match is None:
            raise RbError(f"The class map {file} has the line '{line}'. Expected a name and an index: cat 3.")
        pairs.append((match[1], int(match[2])))
    return pairs


def _ordered(file: str, pairs: list[tuple[str, int]], folders: list[str]) -> list[str]:
    by_index: dict[int, str] = {}
    names, seen = dict(pairs), set()
    missing = [name for name in folders if name not in names]
    # The list in a record is complete for its own data, and may be used for data with more classes.
    of_record = file.startswith("of the record") and len(missing) < len(folders)
    for name, index in pairs:
        if name not in folders and missing and not of_record:
            raise RbError(
                f"The class map {file} names '{name}', which is not a class folder.{near(name, folders)}"
                f" The class folders are: {', '.join(folders[:40])}{', ...' if len(folders) > 40 else ''}."
            )
        if name in seen:
            raise RbError(f"The class map {file} names '{name}' twice. Expected each class folder once.")
        if index in by_index:
            raise RbError(
                f"The class map {file} gives index {index} to '{by_index[index]}' and to '{name}'."
                " Expected a different index for each class folder."
            )
        if not 0 <= index < MOST_CLASSES:
            raise RbError(
                f"The class map {file} gives '{name}' the index {index}. Expected the number of the class in"
                f" the model, from 0 to {MOST_CLASSES - 1}."
            )
        by_index[index] = name
        seen.add(name)
    if missing and not of_record:
        raise RbError(
            f"The class map {file} leaves out the class folder{'s' * (len(missing) > 1)}"
            f" {', '.join(missing[:10])}{', ...' if len(missing) > 10 else ''}. Expected an index for"
            f" each of the {len(folders)} class folders."
        )
    return named(by_index, max(by_index) + 1)


def named(by_index: Mapping[int, str], count: int, others: Sequence[str] = ()) -> list[str]:
    """The names of `count` classes. An unnamed class has its number as its name, or "class NUMBER"."""
    taken = {*by_index.values(), *others}
    names = (str(index) if str(index) not in taken else f"class {index}" for index in range(count))
    return [by_index.get(index, name) for index, name in enumerate(names)]
