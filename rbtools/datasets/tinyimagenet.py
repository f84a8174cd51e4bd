"""tinyimagenet: 200 classes of ImageNet at 64x64, unpacked or in their zip archive.

Stanford's course CS231n. The test images have no labels, so the 10,000 validation images are the test
split, as usual.
"""

from __future__ import annotations

import functools
import io
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, ClassVar

from rbtools.datasets.damage import damaged
from rbtools.datasets.photographs import Photographs
from rbtools.datasets.published_files import Remote
from rbtools.datasets.tree import Tree, is_image
from rbtools.errors import RbError
from rbtools.plain_files import plain, read_text
from rbtools.store.stamps import stamp_of

FOLDER = "tiny-imagenet-200"
ANNOTATIONS = "val_annotations.txt"


@dataclass(frozen=True)
class Placed(Tree):
    """A tree whose images are at `places`, in a folder or a zip archive.

    Images are named <class>/<file>, so that all layouts have the same names and fingerprint.
    """

    places: list[str] = field(default_factory=list)
    archive: zipfile.ZipFile | None = None

    def path(self, index: int) -> str:
        """The path of the image, or of the archive, which is the file that can change."""
        return os.path.join(self.root, self.places[index]) if self.archive is None else str(self.root)

    def open(self, index: int) -> IO[bytes]:
        if self.archive is None:
            return super().open(index)
        try:
            return io.BytesIO(self.archive.read(self.places[index]))
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise OSError(f"{self.places[index]} in the archive is damaged: {error}") from None


@dataclass(frozen=True, kw_only=True)
class TinyImageNet(Photographs):
    """The classes are the WordNet numbers in alphabetical order, as torchvision's ImageFolder takes them."""

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
    archive: ClassVar[Remote] = Remote(
        ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",), "90528d7ca1a48142e341f4ef8d21d0de", "250 MB"
    )

    def remotes(self, split: str) -> list[Remote]:
        return [self.archive]

    def tree(self, split: str) -> Tree:
        for folder in self.folders:
            root = self.home / folder
            if (root / "wnids.txt").is_file():
                return _tree(root, split, _names(root), functools.partial(_text, root))
        packed = self.found(self.archive.name)
        if packed is None:
            layout = f"{FOLDER}/wnids.txt with train and val beside it"
            raise self.not_here(split, f"{layout}, or {self.archive.name}")
        return self._in_archive(packed, split)

    def _in_archive(self, packed: Path, split: str) -> Tree:
        try:
            archive = _opened(str(packed), stamp_of(packed).text)
            inner = f"{FOLDER}/"
            names = [name.removeprefix(inner) for name in archive.namelist() if name.startswith(inner)]
            tree = _tree(packed, split, names, lambda name: archive.read(inner + name).decode("utf-8"))
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError) as error:
            raise damaged(packed, f"the archive {self.archive.name}", error) from None
        return Placed(tree.root, tree.classes, tree.files, 0, [inner + name for name in tree.places], archive)


@functools.lru_cache(maxsize=1)
def _opened(path: str, stamp: str) -> zipfile.ZipFile:
    """The archive with that stamp, cached: its list of 120,000 files takes a second to read."""
    return zipfile.ZipFile(plain(path))


def _text(root: Path, name: str) -> str:
    return read_text(root / name)


def _names(root: Path) -> list[str]:
    """The names of all files below a folder, as an archive of it lists them."""

    def walk(folder: str) -> Iterator[str]:
        with os.scandir(root / folder) as entries:
            for entry in entries:
                name = f"{folder}{entry.name}"
                if entry.is_dir():
                    yield from walk(f"{name}/")
                else:
                    yield name

    return [name for part in ("train", "val") if (root / part).is_dir() for name in walk(f"{part}/")]


def _tree(root: Path, split: str, names: list[str], read: Callable[[str], str]) -> Placed:
    """The images of a split among all files: by class, then by name.

    In the official layout the validation images are in one folder, with their classes in a list; in many
    copies they are sorted into class folders.
    """
    classes = sorted(read("wnids.txt").split())
    class_of = _annotated(read(f"val/{ANNOTATIONS}")) if f"val/{ANNOTATIONS}" in names else {}
    part, number = ("train", "val")[split == "test"], {name: i for i, name in enumerate(classes)}
    entries = []
    for name in names:
        first, _, rest = name.partition("/")
        file = rest.rpartition("/")[2]
        if first != part or not is_image(file):
            continue
        wnid = class_of.get(file) if part == "val" and rest.startswith("images/") else rest.partition("/")[0]
        if wnid not in number:
            listed = f"the class '{wnid}', not in wnids.txt" if wnid else f"no class in {ANNOTATIONS}"
            raise RbError(f"The image {name} of tinyimagenet in {root} has {listed}. Get the data anew.")
        entries.append((number[wnid], f"{wnid}/{file}", name))
    entries.sort()
    files = [(place, name) for place, name, _ in entries]
    return Placed(root, classes, files, 0, [name for *_, name in entries])


def _annotated(text: str) -> dict[str, str]:
    """file -> class, of lines such as `val_0.JPEG n03444034 0 32 44 62` with tabs."""
    return {fields[0]: fields[1] for line in text.splitlines() if len(fields := line.split("\t")) > 1}
