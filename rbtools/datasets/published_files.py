"""Describes published data sets without their files, finds their files, and downloads them.

A file is downloaded under a temporary name, checked, and then renamed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

from rbtools.datasets.arrays import Content, ImageArrays, Stamped
from rbtools.datasets.base import DatasetSource, Description, NotHere, damaged
from rbtools.datasets.content_hash import md5_of
from rbtools.datasets.normalization import NORMALIZATIONS
from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.plain_files import read_plain
from rbtools.store import lease
from rbtools.store.files import written_whole

# The data folder if neither --data-dir nor RB_DATA is given.
DEFAULT_FOLDER = "data"
CHUNK = 1 << 20
TIMEOUT_SECONDS = 60.0
HINT = "Free some space, or name another folder with --data-dir (or RB_DATA)."


class ListedFile(NamedTuple):
    """A row of files.tsv: a file from which a split is read, a file to download, or both.

    `path` is relative to the data folder. An archive has the path of the folder into which it is unpacked.
    `split` is "" for an archive of all splits. `size` is a string such as "170 MB".
    """

    dataset: str
    split: str
    path: str
    md5: str
    url: str
    size: str

    @property
    def name(self) -> str:
        """The name of the downloaded file, which differs from `path` for an archive."""
        return self.url.rpartition("/")[2]


@cache
def published() -> list[ListedFile]:
    """The official files of all data sets, with published MD5 sums and addresses."""
    lines = Path(__file__).with_name("files.tsv").read_text("ascii").splitlines()[1:]
    return [ListedFile(*line.split("\t")) for line in lines]


@dataclass(frozen=True, kw_only=True)
class PublishedDataset(DatasetSource):
    """A published data set. Its official files are searched for in `folders` of the data folder, in order."""

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

    def files(self, split: str) -> list[ListedFile]:
        """The files from which a split is read, in the order of the examples."""
        self.known(split)
        return [file for file in self._published() if file.split == split]

    def remotes(self, split: str) -> list[ListedFile]:
        """The files to download for a split."""
        return [file for file in self._published() if file.url and file.split in ("", split)]

    def _published(self) -> list[ListedFile]:
        word = self.name.partition(":")[0]
        return [file for file in published() if file.dataset == word]

    def parts(self, split: str) -> dict[Path, str | None]:
        """Maps each file from which a split is read to its published MD5, or raises NotHere."""
        files = self.files(split)
        paths = self.all_of(split, [file.path for file in files])
        return dict(zip(paths, (file.md5 for file in files), strict=True))

    def stamped(self, split: str) -> Stamped:
        return (self.name, split), [(path.name, path) for path in self.parts(split)]

    def download(self, split: str, say: Callable[[str], None], check_cancelled: Callable[[], None]) -> None:
        self.known(split)
        try:
            self.parts(split)
        except NotHere:
            for remote in self.remotes(split):
                bring(remote, self.home, say, check_cancelled)

    @property
    def home(self) -> Path:
        return Path(self.data_dir or os.environ.get("RB_DATA") or DEFAULT_FOLDER).expanduser()

    def known(self, split: str) -> None:
        if split not in self.sizes:
            raise self.unknown_split(split, self.sizes)

    def all_of(self, split: str, names: Sequence[str]) -> list[Path]:
        """The paths of the files `names` in the first folder that contains one or more of them.

        Raises NotHere if no folder contains any file, and RbError if that folder does not contain all files.
        """
        places = [[self.home / folder / name for name in names] for folder in self.folders]
        for paths in (*places, [self.home / Path(name).name for name in names]):
            lacking = [path.name for path in paths if not path.is_file()]
            if not lacking:
                return paths
            if len(lacking) < len(paths):
                raise RbError(
                    f"The folder {paths[0].parent} lacks {', '.join(lacking)} of the data set {self.name}."
                    " Copy or download its files again."
                )
        raise self.not_here(split, Path(self.folders[0], names[0]).as_posix())

    def not_here(self, split: str, layout: str) -> NotHere:
        """The error for missing files, with the folders that were searched and the downloads."""
        folders = ", ".join(str(self.home / folder) for folder in self.folders)
        remotes = self.remotes(split)
        offers = " and ".join(f"{remote.url} ({remote.size})" for remote in remotes)
        do = f"Add --download to get {offers}, or download" if remotes else "Get"
        return NotHere(
            f"The data set {self.name} was not found. Expected {layout}; looked in {folders}. {do} it"
            " yourself, and name the folder that contains it with --data-dir (or RB_DATA)."
        )


@dataclass(frozen=True, kw_only=True)
class Arrays(PublishedDataset, ImageArrays):
    """A published data set whose files contain arrays. Each file is read completely."""

    form: ClassVar[str]  # the kind of its files, in words

    @abstractmethod
    def unpacked(self, data: bytes) -> Any:
        """Decodes the bytes of one file. May raise any exception."""

    def joined(self, parts: list[Any]) -> tuple[list[np.ndarray], np.ndarray]:
        """The images uint8 (n, C, H, W) of each file, and all labels int64 (N,)."""
        images, labels = zip(*parts, strict=True)
        return list(images), np.concatenate(labels)

    def read(self, path: Path, published: str | None) -> Any:
        """The content of a file. The MD5 is checked first, because loading a pickle can run code."""
        expected = f"{self.form} of the data set {self.name}"
        if published is not None:
            expected += f" with the MD5 {published}"
        try:
            data = read_plain(path)
            md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
            if md5 != (published or md5):
                raise ValueError(f"its MD5 is {md5}")
            return self.unpacked(data)
        except Exception as error:  # numpy, gzip and scipy raise many kinds of errors
            raise damaged(path, expected, error, "Remove it and download it again.") from None

    def content(self, split: str) -> Content:
        images, labels = self.joined([self.read(*part) for part in self.parts(split).items()])
        found = sum(map(len, images)), *images[0].shape[1:]
        if found != (self.sizes[split], *self.shape) or len(labels) != found[0]:
            raise RbError(
                f"The files of the data set {self.name} contain {_sized(found)} and {len(labels)} labels"
                f" for the split {split}. Expected {_sized((self.sizes[split], *self.shape))}: get the"
                " official files, or use imagefolder:PATH or npz:PATH for data of your own."
            )
        return Content(images, labels, self.class_names)


def _sized(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} images of {'x'.join(map(str, shape[1:]))}"


# --- downloads ----------------------------------------------------------------------------------------


def bring(
    remote: ListedFile, home: Path, say: Callable[[str], None], check_cancelled: Callable[[], None]
) -> None:
    """Download a file into the data folder, check its MD5, and unpack it if it is an archive.

    If several processes need the same file, one process downloads it and the others wait. An archive that
    exists already is only unpacked. Raises RbError if the content of the file is not the published content;
    the file is then deleted.
    """
    target, result, held = home / remote.name, home / remote.path, None
    try:
        held = lease.wait(home / f".downloading-{remote.name}", check_cancelled, result.exists)
        if held is None or result.exists():
            return
        if not (target.exists() and md5_of(target) == remote.md5):
            with written_whole(target, hint=HINT) as out:
                _fetch(remote, out, say, check_cancelled)
        if result != target:
            say(f"unpacking {target}")
            _unpack(target, result)
    except OSError as error:
        raise RbError(f"Cannot write to {home}: {error.strerror or error}. {HINT}") from None
    finally:
        if held is not None:
            held.release()


def _fetch(
    remote: ListedFile, out: IO[bytes], say: Callable[[str], None], check_cancelled: Callable[[], None]
) -> None:
    total, received = hashlib.md5(usedforsecurity=False), 0
    request = urllib.request.Request(remote.url, headers={"User-Agent": "rbtools"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            while chunk := answer.read(CHUNK):
                total.update(chunk)
                out.write(chunk)
                received += len(chunk)
                say(f"downloading {remote.name}  {received / 1e6:.0f} MB of {remote.size}")
                check_cancelled()
    except (OSError, HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # the error holds the connection
        raise RbError(
            f"Cannot download {remote.url}: {getattr(error, 'reason', None) or error}. Check the network (and"
            " https_proxy, if there is a proxy), or download the file yourself into the folder given by"
            " --data-dir (or RB_DATA)."
        ) from None
    if total.hexdigest() != remote.md5:
        raise RbError(
            f"The download from {remote.url} ({received} bytes) is not the published file: its MD5 is"
            f" {total.hexdigest()}, expected {remote.md5}. It was deleted. Try again, or get the file from"
            " another source."
        )


def _unpack(archive: Path, target: Path) -> None:
    """Unpack an archive. The folder `target` does not exist until it is complete."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".unpacking-") as aside:
        content = Path(aside, "content")
        # Python 3.11.3 and older may have no filters. The MD5 is that of the published archive.
        safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        shutil.unpack_archive(archive, content, **(safe if ".tar" in archive.name else {}))
        inner = content / target.name  # if it does not exist, the archive's files are at its top level
        os.rename(inner if inner.is_dir() else content, target)
