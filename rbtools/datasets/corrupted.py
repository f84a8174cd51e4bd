"""cifar10-c and cifar100-c: the test images under common corruptions, in numpy's files.

Hendrycks and Dietterich, "Benchmarking neural network robustness to common corruptions and perturbations",
ICLR 2019; Zenodo records 2535967 and 3555552, whose MD5 sums these are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import ClassVar

from rbtools.datasets import cifar, content_hash, npy, streaming
from rbtools.datasets.base import Dataset, Description, HashCache, check_labels, damaged
from rbtools.datasets.published_files import PublishedDataset, PublishedFile, named
from rbtools.errors import RbError, near
from rbtools.lazy import np
from rbtools.units import SEVERITIES

# The corruptions of the benchmark, and those that its authors use for validation.
CORRUPTIONS = tuple(
    "brightness contrast defocus_blur elastic_transform fog frost gaussian_noise glass_blur impulse_noise"
    " jpeg_compression motion_blur pixelate shot_noise snow zoom_blur".split()
)
EXTRA = ("gaussian_blur", "saturate", "spatter", "speckle_noise")


@dataclass(frozen=True, kw_only=True)
class CifarC(PublishedDataset):
    """cifar10-c:fog.3 is one corruption at one severity, cifar10-c:fog all five, cifar10-c everything.

    Everything is the 15 corruptions of the benchmark, in alphabetical order, each from severity 1 to 5;
    the four further ones of the archive are selected by name. The accuracy on everything is one minus the
    unnormalised mean corruption error.
    """

    shape: ClassVar[tuple[int, int, int]] = (3, 32, 32)
    sizes: ClassVar[dict[str, int]] = {"test": 10_000}  # images of one corruption at one severity

    def __post_init__(self) -> None:
        word, dot, severity = (self.argument or "").partition(".")
        names = (*CORRUPTIONS, *EXTRA)
        wrong = self.argument is not None and word not in names
        if wrong or (dot and severity not in map(str, SEVERITIES)):
            base = self.name.partition(":")[0]
            problem = f"'{word}' is no corruption.{near(word, names)} It has: {', '.join(names)}"
            if not wrong:
                problem = f"'{severity}' is no severity. Severities are 1 to 5"
            raise RbError(f"The data set is '{self.name}': {problem}. Write for example {base}:fog.3.")

    def describe(self) -> Description:
        return replace(super().describe(), sizes={"test": len(self._blocks()) * self.sizes["test"]})

    def files(self, split: str) -> list[PublishedFile]:
        """The file of labels, then a file per corruption."""
        wanted = {"labels", *(name for name, _ in self._blocks())}
        return [file for file in super().files(split) if PurePath(file.path).stem in wanted]

    def load(self, split: str) -> Dataset:
        self.known(split)
        arrays, labels = self._arrays(split)
        blocks, size = self._blocks(), self.sizes["test"]

        def fetch(ids: np.ndarray, out: np.ndarray) -> None:
            for number, (name, severity) in enumerate(blocks):
                of_block = ids // size == number
                if of_block.any():
                    places = ids[of_block] - number * size + (severity - 1) * size
                    out[of_block] = arrays[name][places].transpose(0, 3, 1, 2)

        images = streaming.images((len(blocks) * size, *self.shape), fetch)
        return self.loaded(split, images, labels, self.class_names)

    def fingerprint(self, split: str, cache: HashCache | None = None) -> str:
        """Covers the pixels and labels of the selected blocks."""
        self.known(split)
        parts = self.parts(split)
        size = self.sizes["test"]

        def make() -> str:
            for path, published in parts.items():
                if (md5 := content_hash.md5_of(path)) != published:
                    expected = f"the file of the data set {self.name} whose MD5 is {published}"
                    raise damaged(path, expected, f"its MD5 is {md5}", "Remove it and get it again.")
            arrays, labels = self._arrays(split)
            chunks = (
                arrays[name][(severity - 1) * size : severity * size].transpose(0, 3, 1, 2)
                for name, severity in self._blocks()
            )
            return content_hash.pixels_hash((len(labels), *self.shape), chunks, labels)

        return content_hash.remembered(cache, (self.name, split), named(parts), make)

    def _blocks(self) -> list[tuple[str, int]]:
        """(corruption, severity) of each ten thousand images."""
        word, _, severity = (self.argument or "").partition(".")
        names = (word,) if word else CORRUPTIONS
        return [(name, number) for name in names for number in SEVERITIES if severity in ("", str(number))]

    def _arrays(self, split: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Memory maps (50000, 32, 32, 3) by corruption, and the labels of all images int64 (N,)."""
        arrays = {path.stem: self._array(path) for path in self.parts(split)}
        labels = arrays.pop("labels").astype(np.int64).reshape(len(SEVERITIES), -1)
        chosen = np.concatenate([labels[severity - 1] for _, severity in self._blocks()])
        check_labels(self.name, chosen, self.class_names)
        return arrays, chosen

    def _array(self, path: Path) -> np.ndarray:
        """The labels (50000,) or the images (50000, 32, 32, 3) of a file, as a memory map."""
        channels, height, width = self.shape
        sides, kind, bytes_most = (
            ((), "whole numbers", 8) if path.stem == "labels" else ((height, width, channels), "bytes", 1)
        )
        shape = (len(SEVERITIES) * self.sizes["test"], *sides)
        expected = f"{path.name} of the data set {self.name}: {kind} of the shape {shape}"
        try:
            array = npy.mapped(path)
        except (ValueError, OSError) as error:
            raise damaged(path, expected, error) from None
        if array.shape != shape or array.dtype.kind not in "iu" or array.itemsize > bytes_most:
            raise damaged(path, expected, f"it holds {array.dtype} {array.shape}")
        return array


@dataclass(frozen=True, kw_only=True)
class Cifar10C(CifarC):
    """CIFAR-10-C."""

    folders: ClassVar[tuple[str, ...]] = (".", "cifar10-c")
    class_names: ClassVar[tuple[str, ...]] = cifar.Cifar10.class_names
    normalization: ClassVar[str] = "cifar10"


@dataclass(frozen=True, kw_only=True)
class Cifar100C(CifarC):
    """CIFAR-100-C, with the fine classes."""

    folders: ClassVar[tuple[str, ...]] = (".", "cifar100-c")
    class_names: ClassVar[tuple[str, ...]] = cifar.Cifar100.class_names
    normalization: ClassVar[str] = "cifar100"
