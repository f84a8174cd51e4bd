"""parquet:PATH, data sets in the format of the Hugging Face Hub: columns of encoded images and of labels.

PATH is a .parquet file, or a folder with data/train-00000-of-00001.parquet ... or train/0000.parquet ...
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar

from rbtools.datasets import content_hash, decode
from rbtools.datasets.base import (
    Dataset,
    DatasetSource,
    Description,
    HashCache,
    NotHere,
    channels_of,
    damaged,
    numbered,
)
from rbtools.errors import RbError, shown
from rbtools.lazy import np
from rbtools.plain_files import plain

if TYPE_CHECKING:
    import pyarrow

EXPECTED = (
    "a .parquet file, or a folder with such files for each split (data/train-00000-of-00001.parquet or"
    " train/0000.parquet), with encoded images in one column and whole numbers as labels in another"
)
# The Hub's names of splits and of columns. If several columns fit, the first name in this order is taken.
_SPLIT = re.compile(r"(?:partial-)?(train|test|validation|valid|val|dev)\b")
_SYNONYMS = dict.fromkeys(("valid", "val", "dev"), "validation")
_IMAGES, _LABELS = ("image", "img"), ("label", "labels", "fine_label")


@dataclass(frozen=True, kw_only=True)
class Parquet(DatasetSource):
    """One column has the images, encoded as PNG or JPEG, and one column has the labels.

    If there is no `test`, `validation` is used. The class names are those in the Hub's metadata of the file,
    or otherwise the numbers from 0 to the highest label of all splits. Without preprocessing, all images must
    have the same size. Images are converted to greyscale if most images are greyscale, otherwise to RGB.
    PATH:rgb and PATH:grey select one of the two.
    """

    decodes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.argument:
            raise RbError(
                f"The data set '{self.name}' does not name a file. Write parquet:PATH; expected {EXPECTED}."
            )

    def describe(self) -> Description:
        scaled, tables = self.preprocessing, self._tables.values()
        size = decode.one_size(tables) if scaled is None else (scaled.crop, scaled.crop)
        return self.described(
            (self._channels, *size),
            self._class_names,
            {split: len(table) for split, table in self._tables.items()},
            notes=self._notes(),
        )

    def load(self, split: str) -> Dataset:
        self._known(split)
        table, scaled = self._tables[split], self.preprocessing
        size = decode.size_of(table, 0) if scaled is None else (scaled.crop, scaled.crop)
        images = decode.images_of(table, (self._channels, *size), scaled)
        return self.loaded(split, images, table.labels, self._class_names)

    def fingerprint(self, split: str, cache: HashCache | None = None) -> str:
        """The hash of labels and encoded images in order, however they are divided into files."""
        self._known(split)
        files, channels = self._files[split], channels_of(self.argument)[1]

        def make() -> str:
            table = ImageTable(files)
            total = hashlib.sha256(content_hash.lines("rbtools parquet 1"))
            for row, label in enumerate(table.labels):
                try:
                    with table.open(row) as image:
                        content = image.read()
                except OSError as error:
                    raise decode.unreadable(table.path(row), error) from None
                total.update(content_hash.lines(str(label), hashlib.sha256(content).hexdigest()))
            total.update(content_hash.lines(*asked))
            return total.hexdigest()

        asked = [] if channels is None else [f"channels {channels}"]
        asked += [] if self.preprocessing is None else [str(self.preprocessing)]
        key = ("parquet", *asked, *map(os.path.realpath, files))
        return content_hash.remembered(cache, key, [(file.name, file) for file in files], make)

    @cached_property
    def _files(self) -> dict[str, list[Path]]:
        return _files_by_split(Path(channels_of(self.argument)[0]).expanduser())

    def _known(self, split: str) -> None:
        if split not in self._files:
            raise self.unknown_split(split, self._files)

    @cached_property
    def _tables(self) -> dict[str, ImageTable]:
        return {split: ImageTable(files) for split, files in self._files.items()}

    @cached_property
    def _class_names(self) -> list[str]:
        tables = list(self._tables.values())
        named = next((table.class_names for table in tables if table.class_names), None)
        return named or numbered(tables[0].path(0), (table.labels for table in tables))

    @cached_property
    def _grey(self) -> list[bool]:
        """For at most 99 evenly spaced images of each split, whether the image has one channel."""
        tables = self._tables.values()
        return [decode.is_grey(table, row) for table in tables for row in decode.evenly_spread(len(table))]

    @property
    def _channels(self) -> int:
        return channels_of(self.argument)[1] or (1 if 2 * sum(self._grey) > len(self._grey) else 3)

    def _notes(self) -> tuple[str, ...]:
        to_rgb = self._channels == 3
        converted = self._grey.count(to_rgb)
        if not converted:
            return ()
        kind, result = ("greyscale", "RGB") if to_rgb else ("in colour", "one channel")
        return (
            f"{self.name}: {converted} of {len(self._grey)} images checked are {kind}. They are converted to"
            f" {result}.",
        )


def _files_by_split(path: Path) -> dict[str, list[Path]]:
    """Maps each split to its files in order. Raises RbError if there are none, or if a split is unclear."""
    if not path.exists():
        raise NotHere(f"The path {path} does not exist. Expected {EXPECTED}.")
    files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    splits: dict[str, list[Path]] = {}
    for file in files:
        word = _SPLIT.match(file.name) or _SPLIT.fullmatch(file.parent.name)
        if word is None and not path.is_file():
            raise RbError(f"The name of the file {file} does not show its split. Expected {EXPECTED}.")
        split = "test" if word is None else word[1]
        splits.setdefault(_SYNONYMS.get(split, split), []).append(file)
    if not splits:
        raise RbError(f"The folder {path} has no .parquet file. Expected {EXPECTED}.")
    for split, of_split in splits.items():
        folders = {file.parent for file in of_split}
        if len(folders) > 1:
            names = ", ".join(str(folder) for folder in sorted(folders)[:4])
            raise RbError(
                f"The folder {path} has files of the split {split} in several folders: {names}. Name one of"
                " them: parquet:PATH/FOLDER."
            )
    if "test" not in splits and "validation" in splits:
        splits["test"] = splits.pop("validation")
    return splits


class ImageTable:
    """The rows of a split in memory: labels int64 (N,), and encoded images by number."""

    def __init__(self, files: list[Path]) -> None:
        self._files = files
        pa, pq = _pyarrow()
        try:
            schema = pq.read_schema(plain(files[0]))
            image, label = _columns(schema, files[0])
            for file in files:
                # Equal labels compress well: a small file may claim more rows than fit in memory.
                if (rows := pq.read_metadata(plain(file)).num_rows) > (size := file.stat().st_size):
                    raise ValueError(f"it claims {rows} rows in {size} bytes")
            table = pa.concat_tables([pq.ParquetFile(plain(file)).read([image, label]) for file in files])
            self._images, labels = table.column(image), table.column(label)
            if labels.null_count:
                raise ValueError(f"its column {label} has rows without a value")
            self.labels: np.ndarray = labels.to_numpy().astype(np.int64)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise damaged(files[0], EXPECTED, str(error).split("\n")[0]) from None
        if not len(self.labels):
            raise RbError(f"The file {files[0]} has no rows. Expected {EXPECTED}.")
        self.class_names = _class_names_in(schema, label)

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> str:
        return f"in row {index} of {self._files[0]}{' and the following' if len(self._files) > 1 else ''}"

    def open(self, index: int) -> IO[bytes]:
        row = self._images[index].as_py()
        data = row["bytes"] if isinstance(row, dict) else row
        if not data:
            raise OSError(
                "its cell is empty" if row is None else "the file contains only the name of the image"
            )
        return io.BytesIO(data)


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise RbError(
            "Parquet files need pyarrow, which is not installed. Run: pip install pyarrow"
            " (or install rbtools with its extra: rbtools[parquet])."
        ) from None
    return pyarrow, pyarrow.parquet


def _columns(schema: pyarrow.Schema, file: Path) -> tuple[str, str]:
    from pyarrow import types

    def encoded(kind: pyarrow.DataType) -> bool:
        if types.is_struct(kind):
            return any(field.name == "bytes" and encoded(field.type) for field in kind)
        return bool(types.is_binary(kind) or types.is_large_binary(kind))

    def choose(names: list[str], usual: tuple[str, ...], wanted: str) -> str:
        name = next((name for name in usual if name in names), names[0] if len(names) == 1 else None)
        if name is None:
            there = shown(", ".join(f"{field.name} ({field.type})" for field in schema), 300)
            raise RbError(
                f"The file {file} needs exactly one column of {wanted} ({', '.join(usual)}). It has: {there}."
            )
        return name

    images = [field.name for field in schema if encoded(field.type)]
    labels = [field.name for field in schema if types.is_integer(field.type)]
    return choose(images, _IMAGES, "encoded images"), choose(labels, _LABELS, "labels")


def _class_names_in(schema: pyarrow.Schema, label: str) -> list[str] | None:
    try:
        about = json.loads((schema.metadata or {})[b"huggingface"])
        names = about["info"]["features"][label]["names"]
        return [str(name) for name in names]
    except (KeyError, TypeError, ValueError):
        return None
