"""Writes archives of corrupted images such as CIFAR-10-C, and draws corrupted images.

An archive contains a file NAME.npy for each corruption and a file labels.npy. NAME.npy contains uint8 images
(5 N, H, W, C): the N images of the data set at severity 1, then at severity 2, and so on. labels.npy contains
the labels of these images, (5 N,) or only (N,).
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from rbtools import registry
from rbtools.errors import RbError
from rbtools.execution import device, resources
from rbtools.execution.run import Run
from rbtools.inputs.data import data_of
from rbtools.jobs.corruption_archive import BLOCKS
from rbtools.lazy import np, torch
from rbtools.plain_files import LARGEST_LIST, read_plain
from rbtools.rng import GENERATOR
from rbtools.rng.draws import Draws
from rbtools.store.files import cannot_write, user_output, written_whole
from rbtools.units import SEVERITIES

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.corruptions.base import Corruption
    from rbtools.datasets.streaming import Streamed

CHUNK = 256
ABOUT = "rb-corrupt.json"  # describes the files of a folder, so that a later run may continue
_SHARED = ("fingerprint", "split", "images", "seed", "draws")  # fields that all files of a folder share
HINT = "Free some space, or name another folder."
CELL = 96  # images in the picture are enlarged to at least this side length in pixels
GAP, TOP, LEFT = 4, 22, 150
INK, PAPER = (0, 0, 0), (255, 255, 255)


# --- writing an archive ---------------------------------------------------------------------------


def write(corruptions: Sequence[Any], folder: Path, run: Run) -> list[str]:
    """Write the files that are missing or unfinished. Returns a line about each corruption.

    Each severity contains the images in the order of their split, of which `--n` and `--indices` select some.
    `rb-corrupt` evaluates the same pixels if the seed is the same. Raises RbError if the folder contains
    files made from other images or another seed, if images are too small, or if a file cannot be written.
    """
    data = data_of({}, run)
    chosen = [corruption.resolved() for corruption in corruptions]
    for corruption in chosen:
        for severity in SEVERITIES:
            corruption.check_size(severity, data.about.shape[1:])
    dataset = data.load()
    ids = data.order(dataset.labels)[: run.selection.n].sort().values
    about = {"dataset": data.name, "split": data.split, "fingerprint": data.fingerprint, "images": len(ids)}
    about |= {"n": run.selection.n, "seed": run.settings.seed, "draws": GENERATOR}
    _claim(folder, about, chosen)
    labels = dataset.labels[ids].repeat(BLOCKS).numpy()
    with written_whole(folder / "labels.npy", hint=HINT) as stream:
        # uint8, as published, if all labels fit
        np.save(stream, labels.astype(np.uint8 if labels.max() < 256 else np.int64))
    lines = []
    with device.taken(run, resources.training_threads(run, None)) as target:
        for corruption in chosen:
            path = folder / f"{corruption.name}.npy"
            if path.exists():
                lines.append(f"{path} was already complete.")
                continue
            earlier = _write_one(corruption, path, dataset.images, ids, target, run)
            lines.append(f"{path} was written{f', from image {earlier} on' if earlier else ''}.")
    return lines


def _write_one(
    corruption: Corruption, path: Path, images: Tensor | Streamed, ids: Tensor, target: torch.device, run: Run
) -> int:
    """Write one file, or complete it. Returns the number of images that an earlier run had written."""
    channels, height, width = images.shape[1:]
    count = BLOCKS * len(ids)
    head = io.BytesIO()
    shape = (count, height, width, channels)
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": shape})
    corruption.prepared()  # unreadable data raise an error before a file is made
    with _continued(path, head.getvalue(), height * width * channels) as (file, earlier):
        done = earlier
        while done < count:
            run.report.check_cancelled()
            run.report.progress(f"{path.name}  {done}/{count} images")
            block, start = divmod(done, len(ids))
            part = ids[start : start + (run.settings.batch or CHUNK)]
            levels = corrupted(corruption, images[part], part, SEVERITIES[block], target, run.settings.seed)
            file.write(levels.tobytes())
            file.flush()
            done += len(part)
    return earlier


@contextlib.contextmanager
def _continued(path: Path, head: bytes, row: int) -> Iterator[tuple[IO[bytes], int]]:
    """Yields the open file PATH.part, positioned at its end, and the number of its complete rows. The file is
    renamed to `path` if the block succeeds. A file with another header is written again from the beginning.

    Raises RbError if the file cannot be written or if another process is writing the file.
    """
    aside = path.with_name(path.name + ".part")
    try:
        with open(aside, "ab+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.stat(aside)  # another process may just have finished and renamed it
            except OSError:
                raise RbError(
                    f"{aside} is being written by another process. Wait until it ends, or stop it."
                ) from None
            file.seek(0)
            rows = (os.fstat(file.fileno()).st_size - len(head)) // row if file.read(len(head)) == head else 0
            file.truncate(len(head) + rows * row if rows else 0)
            if not rows:
                file.write(head)
            yield file, rows
            file.flush()
            os.fsync(file.fileno())
            os.replace(aside, path)
    except OSError as error:
        raise cannot_write(path, error, HINT) from error


def corrupted(
    corruption: Corruption, images: Tensor, ids: Tensor, severity: int, place: torch.device, seed: int
) -> np.ndarray:
    """Corrupt `images`, uint8 (n, C, H, W), as `rb-corrupt` does. Returns uint8 images (n, H, W, C)."""
    draws = Draws(seed, f"corruption.{corruption.name}", ids.to(place))
    result = corruption(images.to(place).float().div(255), severity, draws)
    levels = result.mul_(255).round_().to(torch.uint8).permute(0, 2, 3, 1)
    return levels.contiguous().cpu().numpy()


def _claim(folder: Path, about: dict[str, Any], corruptions: Sequence[Any]) -> None:
    """Write the description of the folder. Raises RbError if the files in the folder may not match it."""
    file, present = folder / ABOUT, about
    try:
        present = json.loads(read_plain(file, LARGEST_LIST))
        files_there: dict[str, Any] = {**present["files"]}
    except (FileNotFoundError, NotADirectoryError):
        files_there = {}
        if strange := [path.name for path in sorted(folder.glob("*.npy*"))]:
            raise RbError(
                f"{folder} already has {', '.join(strange[:3])}, which rb-corrupt did not write. Name a new"
                " folder."
            ) from None
    except (OSError, ValueError, LookupError, TypeError):
        raise RbError(f"{file} is damaged. Name a new folder, or remove this one.") from None
    other = [key for key in _SHARED if present.get(key) != about[key]]
    for corruption in corruptions:
        settings = {"version": corruption.version, **registry.config(corruption)}
        if files_there.setdefault(corruption.name, settings) != settings:
            other.append(corruption.name)
    if other:
        differing = ", ".join(f"{key} {present.get(key)!r}" for key in other if key in about)
        raise RbError(
            f"{folder} holds a different copy ({differing or ', '.join(other)}). Name a new folder, or use"
            " the same data set, images, seed and constants."
        )
    with written_whole(file, hint=HINT) as stream:
        stream.write(json.dumps({**present, "files": files_there}, indent=1).encode() + b"\n")


# --- a picture ------------------------------------------------------------------------------------


class Sheet(NamedTuple):
    """A caption, the clean image, uint8 (H, W, C), and `rows`, which maps the name of each corruption to one
    corrupted image for each severity."""

    caption: str
    clean: Any
    rows: dict[str, list[Any]]


def corrupted_images(corruptions: Sequence[Any], severities: Sequence[int], run: Run) -> Sheet:
    """The first image of the evaluation under each corruption at each severity. Raises RbError if the image
    is too small for a corruption."""
    data = data_of({}, run)
    dataset = data.load()
    ids = data.order(dataset.labels)[:1]
    clean, rows = dataset.images[ids], dict[str, list[Any]]()
    for corruption in corruptions:
        for severity in severities:
            run.report.check_cancelled()
            run.report.progress(f"{corruption.name} {severity}")
            image = corrupted(corruption, clean, ids, severity, ids.device, run.settings.seed)[0]
            rows.setdefault(corruption.name, []).append(image)
    return Sheet(f"{data.name}, image {int(ids[0])}", clean[0].permute(1, 2, 0).contiguous().numpy(), rows)


def draw(corruptions: Sequence[Any], severities: Sequence[int], file: Path, run: Run) -> str:
    """Draw the images of `corrupted_images` into a PNG file. Returns a line about the file."""
    from PIL import Image, ImageDraw

    sheet = corrupted_images(corruptions, severities, run)
    height, width = sheet.clean.shape[:2]
    scale = max(1, -(-CELL // max(height, width)))
    down, across = scale * height + GAP, scale * width + GAP
    picture = Image.new("RGB", (LEFT + len(severities) * across, TOP + len(corruptions) * down), PAPER)
    pen = ImageDraw.Draw(picture)
    for column, severity in enumerate(severities):
        pen.text((LEFT + column * across, 5), f"severity {severity}", INK)
    for number, (name, images) in enumerate(sheet.rows.items()):
        pen.text((GAP, TOP + number * down + down // 2 - 8), name, INK)
        for column, image in enumerate(images):
            shown = Image.fromarray(image.repeat(3, 2) if image.shape[2] == 1 else image)
            shown = shown.resize((scale * width, scale * height), Image.Resampling.NEAREST)
            picture.paste(shown, (LEFT + column * across, TOP + number * down))
    encoded = io.BytesIO()
    picture.save(encoded, "PNG")
    with user_output(file, hint="Name another file.") as stream:
        stream.write(encoded.getvalue())
    return (
        f"{file} shows {sheet.caption}, under {len(corruptions)} corruption{'s' * (len(corruptions) != 1)}."
    )
