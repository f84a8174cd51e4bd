"""Describes the data on which a record is evaluated, before the data are loaded."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rbtools import check_input, datasets
from rbtools.corruptions import CORRUPTIONS
from rbtools.datasets import npy, streaming
from rbtools.datasets.base import NotHere, channels_of, check_labels
from rbtools.datasets.given import pair
from rbtools.datasets.imagefolder import named
from rbtools.errors import RbError, UsageError
from rbtools.execution.run import Run
from rbtools.inputs import class_order, published_weights
from rbtools.lazy import nn, np, torch
from rbtools.records import SCHEMA
from rbtools.store import Store, digest

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_DATASET = "digits"
IN_MEMORY = "images in memory"
# All corruptions; first those that change images least at severity 1.
MILD = ("jpeg_compression", "pixelate", "defocus_blur", "brightness", *CORRUPTIONS)


D = TypeVar("D", bound="Data")


@dataclass(frozen=True)
class Data:
    """One split of a data set: its description and the fingerprint of its content."""

    name: str
    split: str
    about: datasets.Description
    fingerprint: str
    size: int
    data_dir: str | None = None
    class_map: str | None = None
    indices: datasets.indices.Indices | None = None
    preprocessing: str | None = None

    def load(self) -> datasets.Dataset:
        # the last data sets stay in memory for the next records
        return _loaded(
            self.name, self.split, self.data_dir, self.class_map, self.preprocessing, self.fingerprint
        )

    def order(self, labels: torch.Tensor) -> torch.Tensor:
        """The examples, as indices into the split, in the order of evaluations. `--n` selects the first
        examples, and `--indices LIST` selects only the examples in the list."""
        if self.indices is None:
            return datasets.subset(labels, self.size, seed=0)
        chosen = torch.tensor(self.indices.numbers)
        if self.indices.in_order:
            return chosen
        return chosen[datasets.subset(labels[chosen], self.size, seed=0)]

    def protocol(self) -> dict[str, str]:
        """The fields of an entry that describe the examples, their pixels and the order of the classes."""
        fields = {} if self.indices is None else {"indices": self.indices.name}
        if self.class_map is not None:
            fields["class_map"] = digest({"classes": self.about.class_names})[:16]
        if self.preprocessing is not None:
            fields["preprocessing"] = self.preprocessing
        return fields


@lru_cache(maxsize=2)
def _loaded(
    name: str,
    split: str,
    data_dir: str | None,
    class_map: str | None,
    preprocessing: str | None,
    fingerprint: str,
) -> datasets.Dataset:
    # Describing the data set already required --allow-code, so it is not checked again.
    return datasets.load(
        name, split, data_dir, class_map=class_map, allow_code=True, preprocessing=preprocessing
    )


@dataclass(frozen=True)
class ArchiveDataset(Data):
    """A split without its images, with the labels from the archive in `folder`."""

    folder: str = ""

    def load(self) -> datasets.Dataset:
        """The labels, with the least corrupted images instead of clean images. They are only used to choose
        the normalisation of a checkpoint; no accuracy is measured on them. Raises RbError if a file is
        damaged."""
        size = self.about.sizes[self.split]
        file = Path(self.folder) / "labels.npy"
        try:
            array = npy.mapped(file)
        except (ValueError, OSError) as error:
            raise RbError(f"{file} is damaged: {error}. Unpack the archive again.") from None
        if array.dtype.kind not in "iu" or array.ndim != 1 or len(array) < size:
            raise RbError(
                f"{file} contains {array.dtype} {array.shape}. Expected {size} or more whole numbers: labels"
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
    """Images and labels that a caller passes."""

    dataset: Any = None

    def load(self) -> datasets.Dataset:
        return self.dataset


class InMemory(dict[str, Any]):
    """A record with its model and images in memory, created by `record_in_memory`."""

    def __init__(self, fields: dict[str, Any], model: Any, data: MemoryData) -> None:
        super().__init__(fields)
        self.model, self.data = model, data

    def split(self, split: str, chosen: Any) -> MemoryData:
        """The same images, under the name `split`; `chosen` selects some of them (`--indices LIST`)."""
        return _selected(replace(self.data, split=split), chosen)


def beside(given: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """The result, with the model and the images of the given record if these are in memory."""
    return InMemory(result, given.model, given.data) if isinstance(given, InMemory) else result


def _selected(data: D, chosen: Any, content: dict[str, Any] | None = None) -> D:
    """The data, or only the images in `chosen` (the value of --indices, or `Indices` that were already read).
    If `content` is given, it replaces the fingerprint of the data in the new fingerprint."""
    if chosen is None:
        return data
    indices = datasets.indices.read(chosen, data.size) if isinstance(chosen, str) else chosen
    key = digest({**(content or {"data": data.fingerprint}), "indices": indices.name})
    return replace(data, indices=indices, size=len(indices.numbers), fingerprint=key)


@lru_cache(maxsize=8)
def _described(
    name: str,
    split: str,
    data_dir: str | None,
    preprocessing: str | None,
    chosen: str | datasets.indices.Indices | None,
    store: Store,
    allow_code: bool,
    class_map: str | None,
) -> Data:
    source = datasets.source(name, data_dir, class_map, allow_code=allow_code, preprocessing=preprocessing)
    about, fingerprint = source.describe(), source.fingerprint(split, store)
    scaled = None if source.preprocessing is None else str(source.preprocessing)
    if split not in about.sizes:
        raise source.unknown_split(split, about.sizes)
    size = about.sizes[split]
    data = Data(name, split, about, fingerprint, size, data_dir, class_map, preprocessing=scaled)
    return _selected(data, chosen)


# Data sets that this process has downloaded or found.
_here: set[tuple[str, str, str | None]] = set()


def data_of(record: dict[str, Any], run: Run, split: str | None = None) -> Data:
    """The data of the run: `--dataset`, or else the data set of the record, or else digits. Raises RbError if
    the data are missing, damaged, or different from the published data."""
    if isinstance(record, InMemory):
        return record.split(split or run.selection.split, run.selection.indices)
    name = run.selection.dataset or record.get("dataset") or DEFAULT_DATASET
    own = record.get("dataset")  # may name the channels of the record's network
    if own in (f"{_absolute(str(name))}:grey", f"{_absolute(str(name))}:rgb"):
        name = own
    if not isinstance(name, str):
        raise RbError(
            f"The record's dataset is {name!r}. Expected a name such as digits or imagefolder:PATH."
        )
    preprocessing = run.selection.preprocessing or _preprocessing(record, name)
    split = split or run.selection.split
    selection = run.selection
    if selection.download and (name, split, selection.data_dir) not in _here:
        source = datasets.source(name, selection.data_dir, allow_code=selection.allow_code)
        source.download(split, run.report.progress, run.report.check_cancelled)
        _here.add((name, split, selection.data_dir))
    class_map = selection.class_map
    if class_map is None and "class_map" in record:
        class_map = json.dumps(record["class_map"])
    where = (_absolute(name), split, selection.data_dir, preprocessing, selection.indices)
    described = partial(_described, *where, run.store, selection.allow_code)
    order = None
    try:
        data = described(None if selection.classes else class_map)
        order = _order(record, data, class_map, run)
        data = data if order is None else described(json.dumps(order))
    except NotHere:
        if selection.archive is None:
            raise
        data = _from_archive(name, split, preprocessing, selection.archive, run)
    for note in data.about.notes:
        run.report.notify(note)
    if order is not None:
        run.report.notify(class_order.sentence(order, data))
    return data


def _preprocessing(record: Mapping[str, Any], name: str) -> str | None:
    """The preprocessing of the record's data set, or for `imagenet` that of the record's network."""
    own, arch = record.get("preprocessing"), record.get("arch")
    if isinstance(own, str) and named_data(record, "") == _absolute(name):
        return own
    wanted = arch.get("preprocessing") if isinstance(arch, Mapping) and name == "imagenet" else None
    return wanted if isinstance(wanted, str) else None


def _order(record: Mapping[str, Any], data: Data, class_map: str | None, run: Run) -> list[str] | None:
    """The classes in the order of the record's network; None if the data have the same order."""
    file, known = record.get("checkpoint_file"), record.get("recognised")
    count = known.get("classes") if isinstance(known, Mapping) else None
    count = count if isinstance(count, int) else None
    there, asked = data.about.class_names, run.selection.classes
    if class_map is not None and not asked:
        if count is None or count <= len(there):
            return None
        return named(dict(enumerate(there)), count)
    beside = published_weights.class_names(file) if isinstance(file, str) else ()
    names = beside or record.get("class_map") or ()
    return class_order.of_network(
        data.name, there, [word.strip() for word in (asked or "").split(",") if word.strip()], names, count
    )


def check_here(run: Run, splits: Iterable[str]) -> None:
    """Raise UsageError if the files of `--dataset` are missing. Other errors may concern only one record."""
    for split in splits:
        try:
            data_of({}, run, split)
        except NotHere as wrong:
            raise UsageError(str(wrong)) from None
        except RbError:
            continue


def _absolute(name: str) -> str:
    """The name of the data set with an absolute path, because the record may be read in another folder."""
    word, colon, argument = name.partition(":")
    path = channels_of(argument)[0]
    there = colon and os.path.exists(path)
    return f"{word}:{os.path.abspath(path)}{argument.removeprefix(path)}" if there else name


def of_data(data: Data) -> dict[str, Any]:
    fields: dict[str, Any] = {"dataset": data.name}
    if data.class_map is not None:
        fields["class_map"] = list(data.about.class_names)
    if data.preprocessing is not None:
        fields["preprocessing"] = data.preprocessing
    return fields


def named_data(record: Mapping[str, Any], default: str) -> str:
    """The name of the record's data set, in the form of `Data.name`."""
    name = record.get("dataset", default)
    return _absolute(name) if isinstance(name, str) else default


def _from_archive(name: str, split: str, preprocessing: str | None, folder: str, run: Run) -> ArchiveDataset:
    """A published data set whose files are missing. Raises RbError for an unknown split."""
    data_dir = run.selection.data_dir
    source = datasets.source(name, data_dir, preprocessing=preprocessing)
    about = source.describe()
    if split not in about.sizes:
        raise source.unknown_split(split, about.sizes)
    labels = Path(folder) / "labels.npy"
    if not labels.is_file():
        raise RbError(f"The folder {folder} lacks labels.npy. Unpack the archive again.")
    size = about.sizes[split]
    content = {"archive": run.store.file_hash(labels), "shape": about.shape, "size": size}
    data = ArchiveDataset(
        name, split, about, digest(content), size, data_dir, preprocessing=preprocessing, folder=folder
    )
    return _selected(data, run.selection.indices, content)


def record_in_memory(model: Any, data: Any) -> InMemory:
    """A record for a module, or for a function without gradients, and for its images.

    `model` is in eval mode and maps images in [0, 1] to logits. `data` is (images, labels), a Dataset or a
    DataLoader. Raises RbError if the data have another type, or if a function has gradients but no weights.
    """
    from rbtools.models.answering import AnsweringModel, answering  # imports torch

    images, labels = pair(data, in_order=True)
    if not isinstance(model, nn.Module) and callable(model):
        some = check_input.floats(images[: check_input.PROBED])
        model = answering(model, some, int(labels.max()) + 1) or model
    weights = weights_hash(model, (images.shape[1], images.shape[2], images.shape[3]))
    answers = model.answers if isinstance(model, AnsweringModel) else None
    check_input.check_model(model)
    parameter = next(model.parameters(), None)
    place = images.device if parameter is None else parameter.device
    model, classes = check_input.look(model, images[: check_input.PROBED].to(place))
    check_input.check_labels(labels, len(images), classes)
    channels, height, width = images.shape[1:]
    names, size = [str(number) for number in range(classes)], len(images)
    about = datasets.Description(
        name=IN_MEMORY,
        shape=(channels, height, width),
        classes=classes,
        class_names=names,
        sizes={"test": size, "train": size},
    )
    dataset = datasets.Dataset(
        name=IN_MEMORY,
        split="test",
        classes=classes,
        class_names=names,
        images=images.cpu(),
        labels=labels.cpu(),
    )
    fingerprint = images_hash(images, labels)
    arch = {"space": "memory", "name": weights["class"].rpartition(".")[2]}
    arch |= {} if answers is None else {"answers": answers}
    fields = {"schema": SCHEMA, "arch": arch, "checkpoint": f"sha256:{digest(weights)}"}
    split = MemoryData(IN_MEMORY, "test", about, fingerprint, size, dataset=dataset)
    return InMemory(fields, model, split)


def weights_hash(model: Any, shape: tuple[int, int, int] = (3, 32, 32)) -> dict[str, str]:
    """The class of a module, and the hash of its layers and weights, or of its outputs for images (C, H, W)
    if it has no gradients. Raises RbError for another function."""
    from rbtools.models.answering import AnsweringModel, fingerprint

    if isinstance(model, AnsweringModel):
        return {"class": type(model.function).__qualname__, "weights": fingerprint(model, shape)}
    if not isinstance(model, nn.Module):
        raise RbError(
            f"The model is of type {type(model).__name__} and has no weights that identify its results."
            " Pass an nn.Module, or leave out store."
        )
    kind, content = type(model), hashlib.sha256(repr(model).encode())
    for name, value in model.state_dict().items():
        content.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        content.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return {"class": f"{kind.__module__}.{kind.__qualname__}", "weights": content.hexdigest()}


def images_hash(images: Any, labels: Tensor) -> str:
    content = hashlib.sha256(f"{images.dtype} {tuple(images.shape)}".encode())
    for part in images.split(1024):
        content.update(part.cpu().contiguous().numpy().tobytes())
    content.update(labels.cpu().numpy().tobytes())
    return content.hexdigest()
