"""cifar10-c and cifar100-c: the test images under common corruptions, as NumPy files.

Hendrycks and Dietterich, "Benchmarking neural network robustness to common corruptions and perturbations",
ICLR 2019; MD5 sums are from Zenodo records 2535967 and 3555552.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import ClassVar

from rbtools.datasets import cifar, content_hash, npy
from rbtools.datasets.arrays import Content, ImageArrays
from rbtools.datasets.base import Description, damaged
from rbtools.datasets.published_files import ListedFile, PublishedDataset
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
class CifarC(PublishedDataset, ImageArrays):
    """cifar10-c:fog.3 is one corruption at one severity, cifar10-c:fog one at all five, cifar10-c all
    corruptions.

    "All corruptions" are the 15 corruptions of the benchmark in alphabetical order, each at severities 1 to
    5. The four other corruptions of the archive can only be selected by name. The accuracy on all corruptions
    is one minus the unnormalised mean corruption error.
    """

    shape = (3, 32, 32)
    sizes: ClassVar[dict[str, int]] = {"test": 10_000}  # images of one corruption at one severity

    def __post_init__(self) -> None:
        word, dot, severity = (self.argument or "").partition(".")
        names = (*CORRUPTIONS, *EXTRA)
        wrong = self.argument is not None and word not in names
        if wrong or (dot and severity not in map(str, SEVERITIES)):
            base = self.name.partition(":")[0]
            problem = f"'{word}' is not a corruption.{near(word, names)} Choose from: {', '.join(names)}"
            if not wrong:
                problem = f"'{severity}' is not a severity. Severities are 1 to 5"
            raise RbError(f"The data set is '{self.name}': {problem}. Write for example {base}:fog.3.")

    def describe(self) -> Description:
        return replace(super().describe(), sizes={"test": len(self._blocks()) * self.sizes["test"]})

    def files(self, split: str) -> list[ListedFile]:
        """The file of labels, followed by one file per corruption."""
        wanted = {"labels", *(name for name, _ in self._blocks())}
        return [file for file in super().files(split) if PurePath(file.path).stem in wanted]

    def content(self, split: str) -> Content:
        arrays = {path.stem: self._array(path) for path in self.parts(split)}
        size, labels = self.sizes["test"], arrays["labels"].astype(np.int64)
        places = [(name, slice((number - 1) * size, number * size)) for name, number in self._blocks()]
        pieces = [arrays[name][place].transpose(0, 3, 1, 2) for name, place in places]
        return Content(pieces, np.concatenate([labels[place] for _, place in places]), self.class_names)

    def hashed(self, split: str) -> str:
        """The fingerprint. Raises RbError if the MD5 of a file is not the published one."""
        for path, published in self.parts(split).items():
            if (md5 := content_hash.md5_of(path)) != published:
                expected = f"the file of the data set {self.name} with the MD5 {published}"
                raise damaged(path, expected, f"its MD5 is {md5}", "Remove it and download it again.")
        return super().hashed(split)

    def _blocks(self) -> list[tuple[str, int]]:
        """The (corruption, severity) of each block of 10,000 images."""
        word, _, severity = (self.argument or "").partition(".")
        names = (word,) if word else CORRUPTIONS
        return [(name, number) for name in names for number in SEVERITIES if severity in ("", str(number))]

    def _array(self, path: Path) -> np.ndarray:
        """The labels (50000,) or the images (50000, 32, 32, 3) of a file, as a memory map."""
        channels, height, width = self.shape
        sides, kind, bytes_most = (
            ((), "whole numbers", 8) if path.stem == "labels" else ((height, width, channels), "bytes", 1)
        )
        shape = (len(SEVERITIES) * self.sizes["test"], *sides)
        expected = f"{path.name} of the data set {self.name}: {kind} of shape {shape}"
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

    folders = (".", "cifar10-c")
    class_names = cifar.Cifar10.class_names
    normalization = "cifar10"


@dataclass(frozen=True, kw_only=True)
class Cifar100C(CifarC):
    """CIFAR-100-C, with the fine classes."""

    folders = (".", "cifar100-c")
    class_names = cifar.Cifar100.class_names
    normalization = "cifar100"
