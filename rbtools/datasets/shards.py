"""ImageNet in packed files: WebDataset's shards (`val-000.tar`) and the Hub's parquet files.

A shard has for each image NAME.jpg (or .jpeg, .png, .webp) and NAME.cls, its class index as text. At first
only headers and labels are read; an image is read where it is used.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, NamedTuple

from rbtools.datasets import parquet
from rbtools.datasets.damage import damaged
from rbtools.datasets.decode import Encoded
from rbtools.datasets.tree import Tree
from rbtools.errors import RbError, one_line
from rbtools.plain_files import opened, plain
from rbtools.store.stamps import stamp_of
from rbtools.store.tar_headers import TarHeader

_SHARD = re.compile(r"(?:.*[-_.])?(train|validation|val)[-_.]?\d.*|\d+", re.DOTALL)  # without its ending
_ENDINGS = (".tar", ".parquet")
_IMAGES, _LABEL = ("jpg", "jpeg", "png", "webp"), "cls"
EXPECTED = "a WebDataset shard: for each image NAME.jpg and NAME.cls, its class index as text"
MOST_DIGITS = 8  # of a class index


class Packed(NamedTuple):
    """Packed images by name: the class index of each, and what reads some of them, or one."""

    labels: dict[str, int]
    read: Callable[[str], bytes]
    gather: Callable[[Sequence[str]], Callable[[str], bytes]] | None = None
    file_names: Mapping[str, str] = {}  # the names of the files that they were made of


@dataclass(frozen=True)
class PackedTree(Tree):
    """The images of one split in packed files, by the names that `files` has for them."""

    sources: Sequence[Path]
    packed: Packed

    def open(self, index: int) -> IO[bytes]:
        return io.BytesIO(self.packed.read(self.files[index][1]))

    def gathered(self, ids: Sequence[int]) -> Tree:
        if self.packed.gather is None:
            return self
        read = self.packed.gather([self.files[index][1] for index in ids])
        return replace(self, packed=self.packed._replace(read=read, gather=None))

    def file_name(self, index: int) -> str:
        name = self.files[index][1]
        return self.packed.file_names.get(name, name)

    def stored(self) -> Iterator[tuple[str, str]]:
        return ((path.name, str(path)) for path in self.sources)


class Member(NamedTuple):
    """Where an image lies in a shard, and its class index."""

    path: Path
    offset: int
    size: int
    label: int


def shards(place: Path, names: Sequence[str]) -> list[Path]:
    """The packed files of a split below a folder, in order; `names` are the split's words.

    A file says its split (`imagenet1k-validation-00.tar`, `data/train-00000-of-00294.parquet`), or lies in a
    folder that does. Where there are both kinds, the tar files are taken.
    """
    found: list[Path] = []
    for folder in (place, place / "data", *(place / name for name in names)):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            match = _SHARD.fullmatch(path.stem) if path.suffix in _ENDINGS else None
            if match and path.is_file() and (match[1] or folder.name) in names:
                found.append(path)
        if found:
            break
    return [path for path in found if path.suffix == ".tar"] or found


def packed_tree(paths: Sequence[Path], class_names: Sequence[str]) -> PackedTree:
    """The images of these files. Raises RbError for a damaged one and for a class index that is none."""
    read = _of_tar if paths[0].suffix == ".tar" else _of_parquet
    packed = read(tuple((path, stamp_of(path).text) for path in paths))
    labels = packed.labels
    wrong = next((name for name, label in labels.items() if not 0 <= label < len(class_names)), None)
    if wrong is not None:
        raise RbError(
            f"{one_line(str(paths[0].parent / wrong))} has the class index {labels[wrong]}. Expected 0 to"
            f" {len(class_names) - 1}, the indices of ImageNet's classes in the order of their wnids."
        )
    present = sorted(set(labels.values()))
    position = {label: place for place, label in enumerate(present)}
    files = [(position[label], name) for name, label in labels.items()]
    return PackedTree(paths[0].parent, [class_names[label] for label in present], files, 0, paths, packed)


@lru_cache(maxsize=2)
def _of_tar(files: tuple[tuple[Path, str], ...]) -> Packed:
    members = {name: member for path, _ in files for name, member in _members(path)}

    def data(name: str) -> bytes:
        member = members[name]
        with opened(member.path) as file:
            file.seek(member.offset)
            return file.read(member.size)

    return Packed({name: member.label for name, member in members.items()}, data)


def _members(path: Path) -> Iterator[tuple[str, Member]]:
    images: dict[str, tuple[str, int, int]] = {}
    labels: dict[str, int] = {}
    whole = path.stat().st_size
    try:
        with tarfile.open(plain(path), "r:", tarinfo=TarHeader) as archive:
            for member in archive:
                folder, _, file = member.name.rpartition("/")
                key, _, ending = file.partition(".")
                if not member.isreg() or member.issparse() or not key:
                    continue
                if member.offset_data + member.size > whole:
                    raise ValueError(f"its member {member.name} is cut off")
                key, ending = f"{folder}/{key}", ending.lower()
                if ending == _LABEL:
                    stream = archive.extractfile(member) if member.size <= MOST_DIGITS else None
                    labels[key] = int(stream.read()) if stream else -1
                elif ending in _IMAGES:
                    images[key] = (f"{path.name}/{member.name}", member.offset_data, member.size)
    except (tarfile.TarError, OSError, ValueError, OverflowError) as error:
        raise damaged(path, EXPECTED, str(error)) from None
    without = next((name for key, (name, *_) in images.items() if key not in labels), None)
    if without is not None or not images:
        raise damaged(path, EXPECTED, f"{without} has no .cls" if without else "it has no images")
    for key, (name, offset, size) in images.items():
        yield name, Member(path, offset, size, labels[key])


@lru_cache(maxsize=2)
def _of_parquet(files: tuple[tuple[Path, str], ...]) -> Packed:
    table = parquet.ImageTable([path for path, _ in files])
    rows = {f"row {row}": row for row in range(len(table))}

    def data(name: str, source: Encoded = table) -> bytes:
        with source.open(rows[name]) as stream:
            return stream.read()

    def gather(names: Sequence[str]) -> Callable[[str], bytes]:
        return partial(data, source=table.gathered([rows[name] for name in names]))

    labels = {name: int(table.labels[row]) for name, row in rows.items()}
    return Packed(labels, data, gather, dict(zip(rows, table.file_names() or (), strict=False)))
