"""Published data sets: descriptions without their files, and the search for the files."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from rbtools.datasets import content_hash, fetch
from rbtools.datasets.base import (
    Dataset,
    DatasetSource,
    Description,
    HashCache,
    NotHere,
    Remote,
    check_labels,
    damaged,
)
from rbtools.datasets.normalization import NORMALIZATIONS
from rbtools.errors import RbError
from rbtools.lazy import np

# The data folder without --data-dir and RB_DATA.
DEFAULT_FOLDER = "data"


class DataFile(NamedTuple):
    """A file that a split is read from, and the MD5 that its publisher prints for it, if any.

    `offset` and `length` locate a file in an uncompressed archive.
    """

    path: Path
    md5: str | None = None
    offset: int = 0
    length: int | None = None


@dataclass(frozen=True, kw_only=True)
class PublishedDataset(DatasetSource):
    """A published data set, with its official files.

    `folders` are searched for its files, relative to the data folder, the usual one first.
    """

    shape: ClassVar[tuple[int, int, int]]
    class_names: ClassVar[Sequence[str]]
    sizes: ClassVar[dict[str, int]]
    folders: ClassVar[tuple[str, ...]] = (".",)
    normalization: ClassVar[str]
    augment: ClassVar[tuple[str, ...]] = ("crop", "flip")

    def __post_init__(self) -> None:
        if self.argument is not None:
            word = self.name.partition(":")[0]
            raise RbError(f"The data set {word} takes no argument, found '{self.name}'. Write {word}.")

    def describe(self) -> Description:
        usual = NORMALIZATIONS[self.normalization]
        more = {"mean": usual.mean, "std": usual.std, "augment": self.augment}
        return self.described(self.shape, self.class_names, dict(self.sizes), **more)

    @abstractmethod
    def parts(self, split: str) -> list[DataFile]:
        """The files that a split is read from. Raises NotHere where they were not found."""

    @abstractmethod
    def remotes(self, split: str) -> list[Remote]:
        """The files to download for a split; empty where none are offered."""

    def download(self, split: str, say: Callable[[str], None], check_cancelled: Callable[[], None]) -> None:
        self.known(split)
        try:
            self.parts(split)
        except NotHere:
            for remote in self.remotes(split):
                fetch.bring(remote, self.home, say, check_cancelled)

    @property
    def home(self) -> Path:
        """The data folder."""
        return Path(self.data_dir or os.environ.get("RB_DATA") or DEFAULT_FOLDER).expanduser()

    def known(self, split: str) -> None:
        """Raise RbError for a split that this data set does not have."""
        if split not in self.sizes:
            raise self.unknown_split(split, self.sizes)

    def found(self, *names: str) -> Path | None:
        """The first existing file of these names in any of the folders, by name first."""
        paths = (self.home / folder / name for name in names for folder in self.folders)
        return next((path for path in paths if path.is_file()), None)

    def folder_of(self, names: Sequence[str], advice: str) -> Path | None:
        """The folder of the first of these files that is there, which has all; None where none is there.

        Raises RbError for a folder that has only some of them.
        """
        first = self.found(*names)
        if first is None:
            return None
        files = [Path(name).name for name in names]
        lacking = [name for name in files if not first.with_name(name).is_file()]
        if lacking:
            raise RbError(
                f"The folder {first.parent} lacks {', '.join(lacking)} of the data set {self.name}. {advice}"
            )
        return first.parent

    def not_here(self, split: str, layout: str) -> NotHere:
        """The error for files that were not found: expected layout, searched folders, what to do."""
        folders = ", ".join(str(self.home / folder) for folder in self.folders)
        remotes = self.remotes(split)
        offers = " and ".join(f"{remote.urls[0]} ({remote.size})" for remote in remotes)
        do = f"Add --download to get {offers}, or get" if remotes else "Get"
        return NotHere(
            f"The data set {self.name} was not found. Expected {layout}; looked in {folders}. {do} it"
            " yourself and name the folder that it lies in with --data-dir (or RB_DATA)."
        )


@dataclass(frozen=True, kw_only=True)
class Arrays(PublishedDataset):
    """A published data set that comes as arrays, and is read whole."""

    @abstractmethod
    def read(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Images uint8 (N, C, H, W) and labels int64 (N,). Raises RbError naming an unreadable file."""

    def load(self, split: str) -> Dataset:
        """Raises RbError where a file is missing, damaged, or holds something else."""
        return self.loaded(split, *self._checked(split), self.class_names)

    def fingerprint(self, split: str, cache: HashCache | None = None) -> str:
        """Covers pixels and labels, so that a packed and an unpacked archive have the same one.

        Raises RbError for a file whose MD5 is not the published one.
        """
        self.known(split)
        parts = self.parts(split)

        def make() -> str:
            check(self.name, parts, self.remotes(split))
            images, labels = self._checked(split)
            return content_hash.pixels_hash(images.shape, [images], labels)

        files = [(part.path.name, part.path) for part in parts]
        return content_hash.remembered(cache, (self.name, split), files, make)

    def _checked(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        self.known(split)
        images, labels = self.read(split)
        if len(images) != self.sizes[split] or images.shape[1:] != self.shape:
            raise RbError(
                f"The files of the data set {self.name} hold {_sized(images.shape)} for the split {split}."
                f" Expected {_sized((self.sizes[split], *self.shape))}: get the official files, or use"
                " imagefolder:PATH or npz:PATH for data of your own."
            )
        check_labels(self.name, labels, self.class_names)
        return images, labels


def _sized(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} images of {'x'.join(map(str, shape[1:]))}"


def check(name: str, parts: Sequence[DataFile], remotes: Sequence[Remote]) -> None:
    """Raise RbError for a file that is empty, a web page, or not the published one."""
    for part in parts:
        md5 = None if part.md5 is None else content_hash.md5_of(part.path, part.offset, part.length)
        if md5 != part.md5:
            addresses = " or ".join(remote.urls[0] for remote in remotes)
            source = f" from {addresses}, or with --download" if addresses else ""
            raise damaged(
                part.path,
                f"the official file of the data set {name}, whose MD5 is {part.md5}",
                f"its MD5 is {md5}",
                f"Remove it and get it again{source}.",
            )
