"""Selects images of `rb-attack --save-adv`, to be drawn next to the clean images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rbtools.attacks import lattice
from rbtools.errors import RbError
from rbtools.inputs.data import data_of
from rbtools.jobs import evidence
from rbtools.lazy import torch
from rbtools.trainer.augment import pixels

if TYPE_CHECKING:
    import numpy as np

    from rbtools.execution.run import Run


class AdversarialRows(NamedTuple):
    """The places of the images in the split, and a row of images, uint8 (H, W, C), for "clean" and for the
    metric of each file."""

    ids: list[int]
    rows: dict[str, list[np.ndarray]]


def adversarial_images(paths: Sequence[str], count: int, run: Run) -> AdversarialRows:
    """The first images, at most `count`, that most files changed. Raises RbError if the files are not from
    `--save-adv`, if they have no images in common, or if their shape is not the shape of the data set."""
    files = [file for path in paths for file in _files(path)]
    data = data_of({}, run)
    dataset, found = data.load(), {}
    shape = tuple(dataset.images.shape[1:])
    for path in files:
        claim = evidence.claim_of(path)
        images, _, ids, _ = next(evidence.batches(path, claim, shape))
        name = str(claim.get("metric"))
        found[f"{name} ({path})" if name in found else name] = dict(zip(ids.tolist(), images, strict=True))
    common = [number for number in next(iter(found.values())) if all(number in one for one in found.values())]
    if not common:
        raise RbError(
            "The first images differ between the files. Draw files that were written with the same --n and"
            " --split."
        )
    clean = dict(zip(common, pixels(dataset.images[torch.tensor(common)]), strict=True))
    changes = {
        number: sum(not torch.equal(one[number], clean[number]) for one in found.values())
        for number in common
    }
    chosen = sorted(sorted(common, key=lambda number: -changes[number])[:count])
    rows = {
        name: [lattice.levels(one[number]).byte().permute(1, 2, 0).numpy() for number in chosen]
        for name, one in {"clean": clean, **found}.items()
    }
    return AdversarialRows(chosen, rows)


def _files(path: str) -> list[str]:
    """The file, or the .npz files in a folder. Raises RbError if there is none."""
    if not os.path.isdir(path):
        return [path]
    files = [os.path.join(path, name) for name in sorted(os.listdir(path)) if name.endswith(".npz")]
    if not files:
        raise RbError(f"{path} has no .npz files. Expected a folder that rb-attack --save-adv wrote.")
    return files
