"""mnist: 28x28 handwritten digits, one channel, in the idx files of its authors, packed or not.

LeCun, Cortes and Burges, "The MNIST database of handwritten digits". MD5 sums and addresses are those that
torchvision lists.
"""

from __future__ import annotations

import gzip
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rbtools.datasets.damage import damaged
from rbtools.datasets.published_files import Arrays, DataFile, Remote
from rbtools.lazy import np
from rbtools.plain_files import opened, plain

_MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")
_UNSIGNED_BYTES = 8  # the idx code of the only type that MNIST uses
LONGEST = 1 << 26  # bytes: the images of the training split are 47 MB


@dataclass(frozen=True, kw_only=True)
class Mnist(Arrays):
    """MNIST. No augmentation in training: a flipped or shifted digit may become another one, or be cut
    off."""

    shape: ClassVar[tuple[int, int, int]] = (1, 28, 28)
    sizes: ClassVar[dict[str, int]] = {"train": 60_000, "test": 10_000}
    normalization: ClassVar[str] = "mnist"
    augment: ClassVar[tuple[str, ...]] = ()
    class_names: ClassVar[tuple[str, ...]] = tuple(str(digit) for digit in range(10))
    folders: ClassVar[tuple[str, ...]] = ("MNIST/raw", "mnist", "mnist/MNIST/raw", "MNIST", ".")
    # split -> (file, MD5 of it packed): images, labels
    files: ClassVar[dict[str, tuple[tuple[str, str], ...]]] = {
        "train": (
            ("train-images-idx3-ubyte", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            ("train-labels-idx1-ubyte", "d53e105ee54ea40749a09fcbcd1e9432"),
        ),
        "test": (
            ("t10k-images-idx3-ubyte", "9fb629c4189551a2d022fa330f9573f3"),
            ("t10k-labels-idx1-ubyte", "ec29112dd5afa0611ce80d1b7f02629c"),
        ),
    }

    def remotes(self, split: str) -> list[Remote]:
        return [
            Remote(tuple(f"{mirror}{name}.gz" for mirror in _MIRRORS), md5, size)
            for (name, md5), size in zip(self.files[split], ("10 MB", "30 kB"), strict=True)
        ]

    def parts(self, split: str) -> list[DataFile]:
        parts = []
        for name, md5 in self.files[split]:
            path = self.found(name, f"{name}.gz")
            if path is None:
                raise self.not_here(split, f"{self.folders[0]}/{name} (torchvision's layout) or {name}.gz")
            parts.append(DataFile(path, md5 if path.suffix == ".gz" else None))
        return parts

    def read(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        images, labels = (
            _idx(part.path, dimensions) for part, dimensions in zip(self.parts(split), (3, 1), strict=True)
        )
        if len(images) != len(labels):
            path = self.parts(split)[1].path
            raise damaged(path, f"{len(images)} labels, as many as there are images", f"it has {len(labels)}")
        return images[:, None].copy(), labels.astype(np.int64)


def _idx(path: Path, dimensions: int) -> np.ndarray:
    """An idx file of bytes. Raises RbError where it is something else, or too short or too long."""
    expected = f"an idx file of bytes with {dimensions} dimension{'s' * (dimensions > 1)}"
    try:
        with gzip.open(plain(path)) if path.suffix == ".gz" else opened(path) as file:
            data = file.read(LONGEST + 1)
        magic, *sides = struct.unpack_from(f">{1 + dimensions}I", data)
        if magic != _UNSIGNED_BYTES << 8 | dimensions:
            raise ValueError(f"it begins with {data[:4].hex()}")
        pixels = np.frombuffer(data, np.uint8, offset=4 * (1 + dimensions))
        if len(pixels) != math.prod(sides):
            raise ValueError(f"it holds {len(pixels)} bytes for {' x '.join(map(str, sides))}")
    except Exception as error:  # gzip and zlib raise many kinds
        raise damaged(path, expected, error) from None
    return pixels.reshape(sides)
