"""Finds published weights by a name, LIBRARY:NAME, or by an architecture's index in a search space."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rbtools import spaces
from rbtools.errors import RbError
from rbtools.execution.run import Run
from rbtools.plain_files import read_text
from rbtools.registry import Registry, hooks

# NAS-Bench-201, and NATS-Bench's topology space (in its full archive; the simple one has no weights).
FILES = ("{:06d}-FULL.pth", "{:06d}.pickle.pbz2")
FOLDERS = ("NAS-Bench-201-v1_1-archive", "NAS-BENCH-201-4-v1.0-archive", "NATS-tss-v1_0-3ffb9-full")
# Weights in a folder of the Hub: one file, or the index of several files.
HUB_FILES = [
    f"{name}{end}" for name in ("model.safetensors", "pytorch_model.bin") for end in ("", ".index.json")
]

# Maps our names of data sets to those in the files.
RUNS = {f"{name}{end}": name for name in ("cifar10", "cifar100") for end in ("", "-c")}
RUNS["imagenet16-120"] = "ImageNet16-120"


class PublishedFile(NamedTuple):
    """The weights file of an architecture, and the member with the weights (None if there is only one)."""

    path: str
    member: str | None


def in_folder(path: str) -> str:
    """The weights file in a folder from the Hugging Face Hub; any other path is returned unchanged."""
    return next(filter(os.path.isfile, (os.path.join(path, name) for name in HUB_FILES)), path)


def check(folder: str) -> None:
    """Raise RbError if `folder` is not a folder of published weights."""
    where = Path(folder)
    there = sorted(path.name for path in where.iterdir()) if where.is_dir() else []
    if not any(name.endswith((".pth", ".pbz2")) or (where / name).is_dir() for name in there):
        listed = ", ".join(there[:5]) + (", ..." if len(there) > 5 else "")
        what = f"a folder with {listed or 'nothing in it'}" if where.is_dir() else "not a folder"
        raise RbError(
            f"--weights is {folder}, which is {what}. Expected a folder of published nasbench201 weights,"
            f" such as {' or '.join(name.format(123) for name in FILES)}."
        )


def found(record: dict[str, Any], run: Run) -> PublishedFile | None:
    """The weights of the record's architecture in the folder of published weights; None if the record has a
    checkpoint. Raises RbError if the architecture is in another search space, or if its file is missing."""
    assert run.selection.weights is not None
    if record.get("checkpoint"):
        return None
    arch = record.get("arch")
    if not isinstance(arch, dict) or arch.get("space") != "nasbench201":
        raise RbError(
            "--checkpoint DIR contains networks of nasbench201, but the record's architecture is in the space"
            f" {arch.get('space') if isinstance(arch, dict) else None!r}. Train it, or leave out the record."
        )
    index = spaces.describe(arch, 10, (3, 32, 32))["index"]
    places = [Path(run.selection.weights), *(Path(run.selection.weights) / name for name in FOLDERS)]
    files = [place / name.format(index) for place in places for name in FILES]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise RbError(
            f"{run.selection.weights} has no weights for the architecture {index}. Expected the file"
            f" {' or '.join(name.format(index) for name in FILES)} in this folder."
        )
    trained_on = str(run.selection.dataset or record.get("dataset")).partition(":")[0]
    return PublishedFile(str(file.absolute()), run.selection.member or RUNS.get(trained_on))


# --- by name ---------------------------------------------------------------------------------------

LIBRARIES = Registry("library of weights", {}, group="named-weights", closed=True)


class NamedWeights(NamedTuple):
    """A weights file. `arch` is the library's description of the network and its preprocessing, and `source`
    the name of the weights, with the revision or the name of the set of weights."""

    path: str
    arch: dict[str, Any]
    source: str


def is_name(text: str) -> bool:
    """True if the value of `--checkpoint` is the name of published weights, and not of a file."""
    return text.partition(":")[0] in LIBRARIES and ":" in text and not Path(text).is_file()


def find(text: str, run: Run) -> NamedWeights:
    """Find the published weights with that name; without --download, nothing is downloaded.

    Raises RbError if the library is not installed or has no such weights, if the file is missing, or if
    weights on the Hugging Face Hub are not in the safetensors format.
    """
    library, _, name = text.partition(":")
    return LIBRARIES.load(library)(name, run)


def beside(path: str) -> dict[str, Any]:
    """The architecture that a configuration next to the file describes, or an empty dict. Raises RbError."""
    return {key: value for read in hooks("configurations") for key, value in read(path).items()}


def class_names(path: str) -> tuple[str, ...]:
    """The names of the classes in the order of the outputs, from config.json next to a file, or ()."""
    try:
        config = json.loads(read_text(Path(path).with_name("config.json")))
    except (OSError, ValueError, RecursionError):
        return ()  # damage is reported when the architecture is read
    parts = [config, config.get("pretrained_cfg")] if isinstance(config, Mapping) else []
    values = [part.get(key) for part in parts if isinstance(part, Mapping) for key in _CLASS_NAMES]
    return next((names for value in values if (names := _in_order(value))), ())


_CLASS_NAMES = ("label_names", "id2label", "label2id", "class_names", "class_to_idx", "classes")


def _in_order(value: Any) -> tuple[str, ...]:
    """The names in a list, or in a table that maps numbers to names or names to numbers; otherwise ()."""
    if isinstance(value, Mapping):
        table = {str(number): name for number, name in value.items()}
        if not all(str(number) in table for number in range(len(table))):
            table = {str(number): name for name, number in value.items()}
        value = [table.get(str(number)) for number in range(len(value))]
    return tuple(value) if isinstance(value, list) and all(isinstance(name, str) for name in value) else ()
