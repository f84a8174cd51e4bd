"""A data set of which only the archive of corrupted images is present, for evaluations of that archive."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rbtools import datasets
from rbtools.corruptions import CORRUPTIONS
from rbtools.datasets.base import check_labels
from rbtools.errors import RbError
from rbtools.inputs.resolve import Data
from rbtools.store import Store, digest

if TYPE_CHECKING:
    import numpy as np


# The corruptions that change images least at severity 1, then the others.
MILD = ("jpeg_compression", "pixelate", "defocus_blur", "brightness", *CORRUPTIONS)


@dataclass(frozen=True)
class ArchiveDataset(Data):
    """A split without its images, with the labels of the archive in `folder`."""

    folder: str = ""

    def load(self) -> datasets.Dataset:
        """The labels; in place of the clean images the mildest of one corruption.

        They serve to choose a checkpoint's normalisation; no accuracy is measured on them. Raises RbError
        for a damaged file.
        """
        import torch

        from rbtools.datasets import npy, streaming

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
