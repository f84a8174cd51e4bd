"""A record's model and the data that it is evaluated on, described without loading either."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rbtools import datasets
from rbtools.datasets.base import NotHere
from rbtools.errors import Pending, RbError
from rbtools.execution.context import RunContext
from rbtools.store import digest

if TYPE_CHECKING:
    import torch
    from torch import nn

DEFAULT_DATASET = "digits"


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
        `--indices` only some of them.
        """
        if self.indices is None:
            return datasets.subset(labels, self.size, seed=0)
        import torch

        chosen = torch.tensor(self.indices.numbers)
        return chosen[datasets.subset(labels[chosen], self.size, seed=0)]

    def protocol(self) -> dict[str, str]:
        """The fields of an entry on the examples besides their split and number."""
        fields = {} if self.indices is None else {"indices": self.indices.name}
        if self.class_map is not None:
            fields["class_map"] = digest({"classes": self.about.class_names})[:16]
        return fields


@lru_cache(maxsize=2)
def _loaded(
    name: str, split: str, data_dir: str | None, class_map: str | None, fingerprint: str
) -> datasets.Dataset:
    return datasets.load(name, split, data_dir, class_map=class_map)


@lru_cache(maxsize=8)
def _described(
    name: str, split: str, data_dir: str | None, class_map: str | None, chosen: Any, store: Any
) -> Data:
    about = datasets.describe(name, data_dir, class_map=class_map)
    fingerprint = datasets.fingerprint(name, split, data_dir, cache=store, class_map=class_map)
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


def data_of(record: dict[str, Any], run: RunContext, split: str | None = None) -> Data:
    """The data of this run: `--dataset`, else the record's own, else digits.

    Raises RbError where they are missing, damaged, or not the published ones.
    """
    name = run.dataset or record.get("dataset") or DEFAULT_DATASET
    if not isinstance(name, str):
        raise RbError(
            f"The record's dataset is {name!r}. Expected a name such as digits or imagefolder:PATH."
        )
    name = _preprocessed(name, record)
    split = split or run.split
    if run.download and (name, split, run.data_dir) not in _here:
        datasets.download(name, split, run.data_dir, say=run.progress, check_cancelled=run.check_cancelled)
        _here.add((name, split, run.data_dir))
    class_map = run.class_map
    if class_map is None and "class_map" in record:
        class_map = json.dumps(record["class_map"])
    try:
        data = _described(_absolute(name), split, run.data_dir, class_map, run.indices, run.store)
    except NotHere:
        if run.archive is None:
            raise
        from rbtools.inputs.archive_dataset import from_archive

        data = from_archive(name, split, run.data_dir, run.indices, run.archive, run.store)
    for note in data.about.notes:
        run.notify(note)
    return data


def _preprocessed(name: str, record: dict[str, Any]) -> str:
    """imagenet, for a network that wants its images scaled or cropped otherwise: with that preprocessing."""
    arch = record.get("arch")
    how = arch.get("preprocessing") if isinstance(arch, dict) else None
    return f"{name}:{how}" if name == "imagenet" and isinstance(how, str) else name


def _absolute(name: str) -> str:
    """The data set's name with the path in it made absolute: a record may be read in another folder."""
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


def names(record: dict[str, Any], data: Data) -> dict[str, Any]:
    """Names of a record's model and data, for readers. They are in no store key."""
    labels = {"arch": _some(record["arch"], ("name", "index", "macs")), "dataset": data.name}
    if isinstance(record.get("train"), dict):
        labels["train"] = _some(record["train"], ("method", "seed", "epochs"))
    return labels


def _some(fields: dict[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    return {name: fields[name] for name in wanted if name in fields}


def checkpoint_name(record: dict[str, Any], run: RunContext) -> str:
    """The name ("sha256:...") of the record's checkpoint, which is all that finding results takes.

    The file itself may be gone; a user's file that is there must still be the one that was named.
    Raises RbError where the record has no checkpoint, or the file's content changed since.
    """
    name = record.get("checkpoint")
    if not name and run.plan is not None:
        raise Pending("The record is not trained yet.", waiting=True)
    if not name:
        raise RbError(
            "The record has no checkpoint, so there is nothing to evaluate. Train it first"
            " (rb-train --method trades), or name a file with --checkpoint."
        )
    if not isinstance(name, str) or not re.fullmatch("sha256:[0-9a-f]{64}", name):
        raise RbError(f"The record's checkpoint is {name!r}. Expected 'sha256:' and 64 hexadecimal digits.")
    file = record.get("checkpoint_file")
    if isinstance(file, str) and os.path.isfile(file) and hash_of(file, run) != name:
        raise RbError(
            f"The checkpoint {file} is not the file that the record was made with: its content has"
            f" changed ({name[:19]}... expected). Make a new record with --checkpoint {file}."
        )
    return name


def checkpoint_of(record: dict[str, Any], run: RunContext) -> tuple[str, Path]:
    """The name and the file of the record's checkpoint.

    Raises RbError where the record has none, the file is gone, or its content changed since.
    """
    name, file = checkpoint_name(record, run), record.get("checkpoint_file")
    if file is None:
        return name, run.store.object(name)
    if not isinstance(file, str) or not os.path.isfile(file):
        raise RbError(f"The checkpoint {file} does not exist. Check the path in the record.")
    return name, Path(file)


def hash_of(path: str, run: RunContext) -> str:
    """The name of a checkpoint's file by what is in it, sha256:HEX. Raises RbError for an unreadable one."""
    try:
        return run.store.file_hash(path)
    except OSError as error:
        raise RbError(
            f"The checkpoint {path} cannot be read: {error.strerror}. Check that you may read it."
        ) from None


def load_model(record: dict[str, Any], data: Data | None, run: RunContext, device: torch.device) -> nn.Module:
    """The record's network with its weights and normalisation: eval mode, parameters frozen.

    Without data it is for images of the shape that the file was recognised with. Raises RbError.
    """
    from rbtools.models import checkpoint

    name, file = checkpoint_of(record, run)
    if run.store.hash_now(file) != name:
        checkpoint_of(record, run)  # says what is wrong
    classes, shape = _recognised(record) if data is None else (data.about.classes, data.about.shape)
    model, _, _ = checkpoint.load(
        file, arch=record["arch"], classes=classes, shape=shape, allow_code=run.allow_code
    )
    return model.to(device).eval().requires_grad_(False)


def _recognised(record: dict[str, Any]) -> tuple[int | None, tuple[int, int, int] | None]:
    """The number of classes and the shape of the images that a file was recognised with, where it says so."""
    facts = record.get("recognised")
    facts = facts if isinstance(facts, dict) else {}
    classes, shape = facts.get("classes"), facts.get("shape")
    sizes = shape if isinstance(shape, list) and len(shape) == 3 else []
    whole = [size for size in (classes, *sizes) if type(size) is int and size > 0]
    if len(whole) != 4:
        return None, None
    return whole[0], (whole[1], whole[2], whole[3])


@dataclass(frozen=True)
class Inputs:
    """A record, one split of its data, and the run that works on them: resolved once (`resolve_inputs`)."""

    record: dict[str, Any]
    data: Data
    run: RunContext

    @property
    def n(self) -> int:
        """How many images count."""
        return self.data.size if self.run.n is None else min(self.run.n, self.data.size)

    @cached_property
    def checkpoint(self) -> str:
        """The name of the checkpoint. Raises RbError as `checkpoint_name` does."""
        return checkpoint_name(self.record, self.run)

    def on(self, split: str, **changes: Any) -> Inputs:
        """The same record on another split, or with other options of the run."""
        run = replace(self.run, **changes)
        return Inputs(self.record, data_of(self.record, run, split), run)

    def load_model(self, device: torch.device) -> nn.Module:
        """The network on the device. Raises RbError as `load_model` does."""
        return load_model(self.record, self.data, self.run, device)

    def record_with_data(self) -> dict[str, Any]:
        """The record with the data that it was evaluated on first, and the order of their classes.

        Without that order the next stage of a pipe would take the alphabet's.
        """
        record, data = self.record, self.data
        if "dataset" not in record:
            return {**record, **of_data(data)}
        if data.class_map is not None and named_data(record, data.name) == data.name:
            return {**record, "class_map": list(data.about.class_names)}
        return record
