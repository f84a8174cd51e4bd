"""The data that a record is evaluated on, described before they are loaded."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rbtools import datasets
from rbtools.corruptions import CORRUPTIONS
from rbtools.datasets import npy, streaming
from rbtools.datasets.base import NotHere, check_labels
from rbtools.errors import RbError
from rbtools.execution.run import Run
from rbtools.lazy import np, torch
from rbtools.store import Store, digest

DEFAULT_DATASET = "digits"
# The corruptions that change images least at severity 1, then the others.
MILD = ("jpeg_compression", "pixelate", "defocus_blur", "brightness", *CORRUPTIONS)


@dataclass(frozen=True)
class Data:
    """One split of a data set: its description and its content's fingerprint."""

    name: str
    split: str
    about: datasets.Description
    fingerprint: str
    size: int
    data_dir: str | None
    class_map: str | None
    indices: datasets.indices.Indices | None = None

    def load(self) -> datasets.Dataset:
        """The images and labels; the last data set stays in memory for the next record."""
        return _loaded(self.name, self.split, self.data_dir, self.class_map, self.fingerprint)

    def order(self, labels: torch.Tensor) -> torch.Tensor:
        """The examples (indices into the split) in the order of every evaluation; `--n` takes the first ones,
        `--n LIST` only some of them.
        """
        if self.indices is None:
            return datasets.subset(labels, self.size, seed=0)
        chosen = torch.tensor(self.indices.numbers)
        if self.indices.in_order:
            return chosen
        return chosen[datasets.subset(labels[chosen], self.size, seed=0)]

    def protocol(self) -> dict[str, str]:
        """The fields of an entry about the examples, other than their split and number."""
        fields = {} if self.indices is None else {"indices": self.indices.name}
        if self.class_map is not None:
            fields["class_map"] = digest({"classes": self.about.class_names})[:16]
        return fields


@lru_cache(maxsize=2)
def _loaded(
    name: str, split: str, data_dir: str | None, class_map: str | None, fingerprint: str
) -> datasets.Dataset:
    # Who describes the data set first has to let a program run, and the name came through that.
    return datasets.load(name, split, data_dir, class_map=class_map, allow_code=True)


@dataclass(frozen=True)
class ArchiveDataset(Data):
    """A split without its images, with the labels of the archive in `folder`."""

    folder: str = ""

    def load(self) -> datasets.Dataset:
        """The labels, with the mildest corrupted images in place of the clean ones. The images only serve to
        choose a checkpoint's normalisation; no accuracy is measured on them. Raises RbError for a damaged
        file.
        """
        size = self.about.sizes[self.split]
        file = Path(self.folder) / "labels.npy"
        try:
            array = npy.mapped(file)
        except (ValueError, OSError) as error:
            raise RbError(f"{file} is damaged: {error}. Unpack the archive again.") from None
        if array.dtype.kind not in "iu" or array.ndim != 1 or len(array) < size:
            raise RbError(
                f"{file} holds {array.dtype} {array.shape}. Expected {size} whole numbers or more: the labels"
                f" of the data set {self.name}. Unpack the archive again."
            )
        labels = torch.from_numpy(array[:size].astype("int64"))
        mild = next((path for name in MILD if (path := file.with_name(f"{name}.npy")).is_file()), None)

        def fetch(ids: np.ndarray, out: np.ndarray) -> None:
            out[:] = 0 if mild is None else npy.mapped(mild)[ids].transpose(0, 3, 1, 2)

        check_labels(self.name, labels.numpy(), tuple(self.about.class_names))
        return datasets.Dataset(
            name=self.name,
            split=self.split,
            classes=self.about.classes,
            class_names=list(self.about.class_names),
            images=streaming.Streamed((size, *self.about.shape), fetch),
            labels=labels,
        )


@dataclass(frozen=True)
class MemoryData(Data):
    """Images and labels that a caller gave, under the name of any split."""

    dataset: Any = None

    def load(self) -> datasets.Dataset:
        loaded: datasets.Dataset = self.dataset
        return loaded


class InMemory(dict[str, Any]):
    """A record whose model and images are in memory beside it (`inputs.memory.record_of`)."""

    def __init__(self, fields: dict[str, Any], model: Any, data: MemoryData) -> None:
        super().__init__(fields)
        self.model, self.data = model, data

    def split(self, split: str, chosen: Any) -> MemoryData:
        """The images under the name of a split; `chosen`: only some of them (`--n LIST`)."""
        if chosen is None:
            return replace(self.data, split=split)
        part = datasets.indices.read(chosen, self.data.size) if isinstance(chosen, str) else chosen
        key = digest({"data": self.data.fingerprint, "indices": part.name})
        return replace(self.data, split=split, indices=part, size=len(part.numbers), fingerprint=key)


@lru_cache(maxsize=8)
def _described(
    name: str,
    split: str,
    data_dir: str | None,
    class_map: str | None,
    chosen: str | datasets.indices.Indices | None,
    store: Store,
    allow_code: bool,
) -> Data:
    about = datasets.describe(name, data_dir, class_map=class_map, allow_code=allow_code)
    fingerprint = datasets.fingerprint(
        name, split, data_dir, cache=store, class_map=class_map, allow_code=allow_code
    )
    size = about.sizes.get(split)
    if size is None:
        known = ", ".join(about.sizes)
        raise RbError(f"The data set {name} has no split '{split}'. It has: {known}.")
    if chosen is None:
        return Data(name, split, about, fingerprint, size, data_dir, class_map)
    indices = datasets.indices.read(chosen, size) if isinstance(chosen, str) else chosen
    part = digest({"data": fingerprint, "indices": indices.name})
    return Data(name, split, about, part, len(indices.numbers), data_dir, class_map, indices)


# Data sets downloaded, or already present, in this process.
_here: set[tuple[str, str, str | None]] = set()


def data_of(record: dict[str, Any], run: Run, split: str | None = None) -> Data:
    """The data of this run: `--dataset`, else the record's own, else digits.

    Raises RbError if they are missing, damaged, or not the published ones.
    """
    if isinstance(record, InMemory):
        return record.split(split or run.selection.split, run.selection.indices)
    name = run.selection.dataset or record.get("dataset") or DEFAULT_DATASET
    if not isinstance(name, str):
        raise RbError(
            f"The record's dataset is {name!r}. Expected a name such as digits or imagefolder:PATH."
        )
    name = _preprocessed(name, record)
    split = split or run.selection.split
    if run.selection.download and (name, split, run.selection.data_dir) not in _here:
        datasets.download(
            name,
            split,
            run.selection.data_dir,
            say=run.report.progress,
            check_cancelled=run.report.check_cancelled,
            allow_code=run.selection.allow_code,
        )
        _here.add((name, split, run.selection.data_dir))
    class_map = run.selection.class_map
    if class_map is None and "class_map" in record:
        class_map = json.dumps(record["class_map"])
    try:
        data = _described(
            _absolute(name),
            split,
            run.selection.data_dir,
            class_map,
            run.selection.indices,
            run.store,
            run.selection.allow_code,
        )
    except NotHere:
        if run.selection.archive is None:
            raise
        data = from_archive(
            name, split, run.selection.data_dir, run.selection.indices, run.selection.archive, run.store
        )
    for note in data.about.notes:
        run.report.notify(note)
    return data


def _preprocessed(name: str, record: dict[str, Any]) -> str:
    """imagenet with the preprocessing of a network that needs images scaled or cropped differently."""
    arch = record.get("arch")
    wanted = arch.get("preprocessing") if isinstance(arch, dict) else None
    return f"{name}:{wanted}" if name == "imagenet" and isinstance(wanted, str) else name


def _absolute(name: str) -> str:
    """The data set's name with an absolute path: a record may be read in another folder."""
    word, colon, argument = name.partition(":")
    return f"{word}:{os.path.abspath(argument)}" if colon and os.path.exists(argument) else name


def of_data(data: Data) -> dict[str, Any]:
    """The fields of a record for its data."""
    fields: dict[str, Any] = {"dataset": data.name}
    if data.class_map is not None:
        fields["class_map"] = list(data.about.class_names)
    return fields


def named_data(record: dict[str, Any], default: str) -> str:
    """The data set that the record names, as `Data.name` has it."""
    name = record.get("dataset", default)
    return _absolute(name) if isinstance(name, str) else default


def from_archive(
    name: str, split: str, data_dir: str | None, chosen: str | None, folder: str, store: Store
) -> ArchiveDataset:
    """The description of a published data set without its files. Raises RbError on an unknown split."""
    about = datasets.describe(name, data_dir)
    if split not in about.sizes:
        raise RbError(f"The data set {name} has no split '{split}'. It has: {', '.join(about.sizes)}.")
    labels = Path(folder) / "labels.npy"
    if not labels.is_file():
        raise RbError(f"The folder {folder} lacks labels.npy. Unpack the archive again.")
    size = about.sizes[split]
    what = {"archive": store.file_hash(labels), "shape": about.shape, "size": size}
    if chosen is None:
        return ArchiveDataset(name, split, about, digest(what), size, data_dir, None, None, folder)
    indices = datasets.indices.read(chosen, size) if isinstance(chosen, str) else chosen
    part = digest({**what, "indices": indices.name})
    return ArchiveDataset(name, split, about, part, len(indices.numbers), data_dir, None, indices, folder)
