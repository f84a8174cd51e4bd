"""Corrupted copies of a data set, in the layout of CIFAR-10-C: NAME.npy and labels.npy."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rbtools import registry
from rbtools.errors import RbError
from rbtools.execution import device, resources
from rbtools.execution.run import Run
from rbtools.inputs.data import Data, data_of
from rbtools.lazy import np, torch
from rbtools.plain_files import LARGEST_LIST, read_plain
from rbtools.rng import GENERATOR
from rbtools.rng.draws import Draws
from rbtools.store.files import written_whole
from rbtools.store.resumable_write import HINT, resumable_write
from rbtools.units import SEVERITIES

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.corruptions.base import Corruption
    from rbtools.datasets.streaming import Streamed

CHUNK = 256
ABOUT = "rb-corrupt.json"  # describes the files of a folder, so that a later run may continue


def write(corruptions: Sequence[Any], folder: Path, run: Run) -> list[str]:
    """Write the files that are missing or unfinished; return a line about each corruption.

    Images are in the order of their split (`--n` selects some), once for each severity, with
    the pixels that `rb-corrupt` evaluates for the same seed. Raises RbError if the folder has files of other
    images or another seed, images are too small, or it cannot be written.
    """
    data = data_of({}, run)
    chosen = [corruption.resolved() for corruption in corruptions]
    for corruption in chosen:
        for severity in SEVERITIES:
            corruption.check_size(severity, data.about.shape[1:])
    dataset = data.load()
    places = data.order(dataset.labels)[: run.selection.n].sort().values
    about = _described(data, run, len(places))
    _claim(folder, about, chosen)
    with written_whole(folder / "labels.npy", hint=HINT) as stream:
        stream.write(_array(dataset.labels[places].repeat(len(SEVERITIES))))
    lines = []
    with device.taken(run, resources.training_threads(run, None)) as where:
        for corruption in chosen:
            path = folder / f"{corruption.name}.npy"
            if path.exists():
                lines.append(f"{path} was already complete.")
                continue
            had = _write_one(corruption, path, dataset.images, places, where, run)
            lines.append(f"{path} is written{f', from image {had} on' if had else ''}.")
    return lines


def _write_one(
    corruption: Corruption,
    path: Path,
    images: Tensor | Streamed,
    places: Tensor,
    where: torch.device,
    run: Run,
) -> int:
    """Write one file, continuing an earlier run; return how many images that run had written."""
    channels, height, width = images.shape[1:]
    count = len(SEVERITIES) * len(places)
    head = _head((count, height, width, channels))
    corruption.prepared()  # what cannot be read is refused before a file is made
    with resumable_write(path, head, height * width * channels, count) as file:
        had = file.rows
        for severity, ids in _pieces(places, had, run.settings.batch or CHUNK):
            run.report.check_cancelled()
            run.report.progress(f"{path.name}  {file.rows}/{count} images")
            file.append(_corrupted(corruption, images, ids, severity, where, run.settings.seed))
    return had


def _pieces(places: Tensor, had: int, chunk_size: int) -> Iterator[tuple[int, Tensor]]:
    """The batches that are not written: a severity, and the ids of the examples."""
    for number, severity in enumerate(SEVERITIES):
        start = min(max(had - number * len(places), 0), len(places))
        for ids in places[start:].split(chunk_size) if start < len(places) else ():
            yield severity, ids


def _corrupted(
    corruption: Corruption,
    images: Tensor | Streamed,
    ids: Tensor,
    severity: int,
    where: torch.device,
    seed: int,
) -> bytes:
    """The bytes of these examples' corrupted images, (n, H, W, C)."""
    draws = Draws(seed, f"corruption.{corruption.name}", ids.to(where))
    result = corruption(images[ids].to(where).float().div(255), severity, draws)
    levels = result.mul_(255).round_().to(torch.uint8).permute(0, 2, 3, 1)
    array: bytes = levels.contiguous().cpu().numpy().tobytes()
    return array


def _described(data: Data, run: Run, count: int) -> dict[str, Any]:
    """The description that all files of a folder share."""
    return {
        "dataset": data.name,
        "split": data.split,
        "fingerprint": data.fingerprint,
        "images": count,
        "n": run.selection.n,
        "seed": run.settings.seed,
        "draws": GENERATOR,
        "files": {},
    }


def _claim(folder: Path, about: dict[str, Any], corruptions: Sequence[Any]) -> None:
    """Write the description of the folder. Raises RbError if its files do not or may not match it."""
    file = folder / ABOUT
    known = _known(file)
    if known is None:
        strange = [path.name for path in sorted(folder.glob("*.npy*"))]
        if strange:
            raise RbError(
                f"{folder} already has {', '.join(strange[:3])}, which rb-corrupt did not write. Name a new"
                " folder."
            )
        known = about
    shared = ("fingerprint", "split", "images", "seed", "draws")
    other = [key for key in shared if known.get(key) != about[key]]
    for corruption in corruptions:
        settings = {"version": corruption.version, **registry.config(corruption)}
        if known["files"].setdefault(corruption.name, settings) != settings:
            other.append(corruption.name)
    if other:
        what = ", ".join(f"{key} {known.get(key)!r}" for key in other if key in about)
        raise RbError(
            f"{folder} holds a different copy ({what or ', '.join(other)}). Name a new folder, or use"
            " the same data set, images, seed and constants."
        )
    with written_whole(file, hint=HINT) as stream:
        stream.write(json.dumps(known, indent=1).encode() + b"\n")


def _known(file: Path) -> dict[str, Any] | None:
    try:
        known: Any = json.loads(read_plain(file, LARGEST_LIST))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        known = None
    if not isinstance(known, dict) or not isinstance(known.get("files"), dict):
        raise RbError(f"{file} is damaged. Name a new folder, or remove this one.")
    return known


def _head(shape: tuple[int, ...]) -> bytes:
    """The header of an .npy file of bytes of this shape."""
    from numpy.lib import format as npy

    stream = io.BytesIO()
    npy.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return stream.getvalue()


def _array(labels: Tensor) -> bytes:
    """The bytes of labels.npy: uint8, as published, where all labels fit, else int64."""
    stream = io.BytesIO()
    np.save(stream, labels.numpy().astype(np.uint8 if int(labels.max()) < 256 else np.int64))
    return stream.getvalue()
