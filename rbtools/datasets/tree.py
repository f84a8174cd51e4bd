"""Lists, loads and hashes images in class folders. Examples are numbered in the order of the files."""

from __future__ import annotations

import hashlib
import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, ClassVar, NoReturn

from rbtools.datasets import content_hash, decode
from rbtools.datasets.base import Dataset, DatasetSource, HashCache, NotHere, are_numbers
from rbtools.datasets.preprocessing import Preprocessing
from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.plain_files import opened

# The file extensions that torchvision's ImageFolder reads.
IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
HIDDEN = "hidden"  # counts hidden files, in place of an extension
# Folder names of each split, the preferred one first.
SPLITS = {"train": ("train",), "test": ("test", "val")}
HASH_AT_ONCE = 4096
EXPECTED = "PATH/train/<class>/*.png (or .jpg ...) and PATH/test/<class>/*.png"


@dataclass(frozen=True)
class Tree:
    """The images of one split.

    `root` is the split's folder, and `classes` are its class folders in order. `files` contains, for each
    image in order, the position of its class in `classes` and its path in `root`. `skipped` counts the
    skipped files by their extensions, and the hidden files.
    """

    root: Path
    classes: list[str]
    files: list[tuple[int, str]]
    skipped: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.files)

    def path(self, index: int) -> str:
        return os.path.join(self.root, self.files[index][1])

    def open(self, index: int) -> IO[bytes]:
        """Open an image. Raises OSError if the file cannot be read or is a pipe or a device."""
        return opened(self.path(index))

    def of_classes(self, names: Sequence[str]) -> Tree:
        """Only the images in these class folders."""
        kept = [name for name in self.classes if name in names]
        if len(kept) == len(self.classes):
            return self
        place = {self.classes.index(name): new for new, name in enumerate(kept)}
        files = [(place[old], name) for old, name in self.files if old in place]
        return replace(self, classes=kept, files=files)


def split_folders(path: str) -> dict[str, Path]:
    """Maps each split to its folder. PATH may itself be `test`. Raises RbError if there is no split."""
    root = Path(path).expanduser()
    if not root.is_dir():
        problem = "is a file" if root.exists() else "does not exist"
        raise NotHere(f"The image folder {path} {problem}. Expected a folder with {EXPECTED}.")
    folders: dict[str, Path] = {}
    for split, names in SPLITS.items():
        present = [root / name for name in names if (root / name).is_dir()]
        if present:
            folders[split] = present[0]
    if not folders and _is_split(root):
        return {"test": root}
    if not folders:
        raise _no_split(path, root)
    if len(folders) > 1:
        same_classes(folders)
    return folders


def scan(root: Path, may_be_empty: bool = False) -> Tree:
    """List the images in one split's folder in the order of torchvision's ImageFolder, without hidden files.

    Within a class, folders are sorted by path, and the files of each folder by name (in code point order, so
    upper case is first). Raises RbError if there is no class, if a class has no images (unless its folder is
    empty and `may_be_empty`), or if links form a loop.
    """
    classes = class_folders(root)
    if not classes:
        raise RbError(
            f"The folder {root} has no class folders. Expected a folder with images for each class:"
            f" {root / 'cat' / 'image.png'}."
        )
    files: list[tuple[int, str]] = []
    skipped: Counter[str] = Counter()
    empty = []
    for position, name in enumerate(classes):
        images = [os.path.join(folder, file) for folder, names in _walk(root, name) for file in sorted(names)]
        chosen = [image for image in images if is_image(os.path.basename(image))]
        others = [os.path.basename(image) for image in set(images).difference(chosen)]
        skipped.update(HIDDEN if _hidden(other) else os.path.splitext(other)[1].lower() for other in others)
        files += [(position, image) for image in chosen]
        if not chosen and (images or not may_be_empty):
            empty.append(name)
    if empty or not files:
        raise RbError(
            f"In {root}, there are no images in the class folder{'s' * (len(empty or classes) > 1)}"
            f" {some(empty or classes)}. Expected files ending in {', '.join(IMAGE_ENDINGS)}; add some, or"
            " remove the folder from both splits."
        )
    return Tree(root, classes, files, skipped)


def _is_split(root: Path) -> bool:
    """Whether a folder is a test split: it is not called train, and its folders contain images."""
    names = class_folders(root)
    if root.resolve().name == "train" or not names:
        return False
    return all(
        any(is_image(file) and not (root / name / file).is_dir() for file in _entries(root / name))
        for name in names
    )


def class_folders(root: Path) -> list[str]:
    """The visible class folders in alphabetical order, or in numerical order if all names are integers."""
    names = sorted(name for name in _entries(root) if not _hidden(name) and os.path.isdir(root / name))
    return sorted(names, key=int) if are_numbers(names) else names


def is_image(name: str) -> bool:
    """Whether a file name has an image's extension and is not hidden."""
    return not _hidden(name) and name.lower().endswith(IMAGE_ENDINGS)


def _hidden(name: str) -> bool:
    return name.startswith(".")


def _walk(root: Path, name: str) -> list[tuple[str, list[str]]]:
    """Pairs (folder, names of its files) for a folder in `root` and for all its subfolders, sorted by path.

    Folders are relative to `root`. Raises RbError if a symbolic link leads to a folder that contains it.
    """
    found = []
    for below, folders, files in os.walk(root / name, onerror=_unreadable, followlinks=True):
        folders[:] = [folder for folder in folders if not _hidden(folder)]
        for link in filter(Path.is_symlink, (Path(below, folder) for folder in folders)):
            target = link.resolve()
            if any(above.resolve().is_relative_to(target) for above in link.parents):
                raise RbError(
                    f"The folder {link} is a link to a folder that contains it, so the search for images"
                    " would never end. Remove the link."
                )
        found.append((os.path.relpath(below, root), files))
    return sorted(found)


def _entries(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        _unreadable(error)


def _unreadable(error: OSError) -> NoReturn:
    raise RbError(
        f"The folder {error.filename} cannot be read ({error.strerror}). Check its permissions."
    ) from None


def same_classes(folders: dict[str, Path]) -> None:
    """Raise RbError if `train` and `test` have different class folders."""
    train, test = (set(class_folders(folders[split])) for split in ("train", "test"))
    if train == test or not train or not test:
        return
    lacking = [
        f"{folders[split]} lacks {some(sorted(missing))}"
        for split, missing in (("train", test - train), ("test", train - test))
        if missing
    ]
    raise RbError(
        f"The splits have different class folders: {'; '.join(lacking)}. The class folders of train and test"
        " must have the same names, because the position of a folder is the label."
    )


def _no_split(path: str, root: Path) -> RbError:
    names = class_folders(root)
    if not names:
        return RbError(f"The image folder {path} has no train or test folder. Expected {EXPECTED}.")
    if root.resolve().name in ("train", "test", "val"):
        return RbError(
            f"{path} is itself a split: it contains the class folders {some(names)}. Expected the folder"
            f" above it: imagefolder:{os.path.dirname(path.rstrip(os.sep)) or '.'}."
        )
    return RbError(
        f"The image folder {path} has no train or test folder. It has the folders {some(names)}, but not all"
        f" of them contain images. If they are classes, put images into each; expected {EXPECTED}."
    )


def some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


@dataclass(frozen=True, kw_only=True)
class TreeDataset(DatasetSource):
    """A data set whose images are files.

    Images are decoded when the split is loaded, or when they are indexed if they do not fit into memory or
    are all scaled. `kind` contains the settings that, together with the files and the preprocessing,
    determine the pixels. `kind` is part of the fingerprint. `odd` is the preprocessing of images that do not
    have the usual size.
    """

    decodes: ClassVar[bool] = True
    kind: ClassVar[str] = "imagefolder 1"
    odd: ClassVar[Preprocessing | None] = None

    @abstractmethod
    def tree(self, split: str) -> Tree:
        """The images of a split. Raises RbError if the split is unknown or the files are not found."""

    @abstractmethod
    def image_shape(self, tree: Tree) -> tuple[int, int, int]:
        """The shape (C, H, W) of every image."""

    @property
    def scaled(self) -> Preprocessing | None:
        """The preprocessing of all images, if any."""
        return self.preprocessing or self.usual

    def names(self, tree: Tree) -> list[str]:
        """The classes in the order of the labels."""
        return tree.classes

    def load(self, split: str) -> Dataset:
        tree = self.tree(split)
        names = self.names(tree)
        images = decode.images_of(tree, self.image_shape(tree), self.scaled, self.odd)
        label_of = np.array([names.index(name) for name in tree.classes])
        return self.loaded(split, images, label_of[[position for position, _ in tree.files]], names)

    def fingerprint(self, split: str, cache: HashCache | None = None) -> str:
        """The hash of the class names in the order of the labels, and of the path and the bytes of each file.

        Raises RbError if a file cannot be read. The message names the file.
        """
        tree = self.tree(split)
        kind = self.kind if self.scaled is None else f"{self.kind} {self.scaled}"
        names = self.names(tree)
        key = [kind, os.path.realpath(tree.root), str(len(names)), *names]
        try:
            files = ((name, tree.path(index)) for index, (_, name) in enumerate(tree.files))
            return content_hash.remembered(cache, key, files, lambda: _hash(tree, names, kind))
        except OSError as error:
            raise RbError(
                f"The image {error.filename or tree.root} cannot be read ({error.strerror or error})."
                " Repair it, or remove it from the folder."
            ) from None


def _hash(tree: Tree, class_names: list[str], kind: str) -> str:
    total = hashlib.sha256(content_hash.lines(f"rbtools {kind}", str(len(class_names)), *class_names))
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, len(tree), HASH_AT_ONCE):  # each waiting call takes a kilobyte
            places = range(start, min(start + HASH_AT_ONCE, len(tree)))
            for place, image in zip(places, pool.map(lambda i: _image_hash(tree, i), places), strict=True):
                total.update(content_hash.lines(tree.files[place][1], image))
    return total.hexdigest()


def _image_hash(tree: Tree, index: int) -> str:
    with tree.open(index) as file:
        return hashlib.sha256(file.read()).hexdigest()
