"""cifar10-c and cifar100-c: the test images under common corruptions, in numpy's files.

Hendrycks and Dietterich, "Benchmarking neural network robustness to common corruptions and perturbations",
ICLR 2019; Zenodo records 2535967 and 3555552, whose MD5 sums these are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from rbtools.datasets import cifar, content_hash, npy, streaming
from rbtools.datasets.base import Dataset, Description, HashCache, check_labels, damaged
from rbtools.datasets.published_files import DataFile, PublishedDataset, Remote
from rbtools.errors import RbError, near
from rbtools.lazy import np
from rbtools.units import SEVERITIES

# The corruptions of the benchmark, and those that its authors use for validation.
CORRUPTIONS = tuple(
    "brightness contrast defocus_blur elastic_transform fog frost gaussian_noise glass_blur impulse_noise"
    " jpeg_compression motion_blur pixelate shot_noise snow zoom_blur".split()
)
EXTRA = ("gaussian_blur", "saturate", "spatter", "speckle_noise")

CIFAR10_C = {
    "brightness": "0a81ef75e0b523c3383219c330a85d48",
    "contrast": "3c8262171c51307f916c30a3308235a8",
    "defocus_blur": "7d1322666342a0702b1957e92f6254bc",
    "elastic_transform": "9421657c6cd452429cf6ce96cc412b5f",
    "fog": "7b397314b5670f825465fbcd1f6e9ccd",
    "frost": "31f6ab3bce1d9934abfb0cc13656f141",
    "gaussian_blur": "c33370155bc9b055fb4a89113d3c559d",
    "gaussian_noise": "ecaf8b9a2399ffeda7680934c33405fd",
    "glass_blur": "7361fb4019269e02dbf6925f083e8629",
    "impulse_noise": "2090e01c83519ec51427e65116af6b1a",
    "jpeg_compression": "2b9cc4c864e0193bb64db8d7728f8187",
    "labels": "c439b113295ed5254878798ffe28fd54",
    "motion_blur": "fffa5f852ff7ad299cfe8a7643f090f4",
    "pixelate": "0f14f7e2db14288304e1de10df16832f",
    "saturate": "1cfae0964219c5102abbb883e538cc56",
    "shot_noise": "3a7239bb118894f013d9bf1984be7f11",
    "snow": "bb238de8555123da9c282dea23bd6e55",
    "spatter": "8a5a3903a7f8f65b59501a6093b4311e",
    "speckle_noise": "ef00b87611792b00df09c0b0237a1e30",
    "zoom_blur": "6ea8e63f1c5cdee1517533840641641b",
}

CIFAR100_C = {
    "brightness": "f22d7195aecd6abb541e27fca230c171",
    "contrast": "322bb385f1d05154ee197ca16535f71e",
    "defocus_blur": "d923e3d9c585a27f0956e2f2ad832564",
    "elastic_transform": "a0792bd6581f6810878be71acedfc65a",
    "fog": "4efc7ebd5e82b028bdbe13048e3ea564",
    "frost": "3a39c6823bdfaa0bf8b12fe7004b8117",
    "gaussian_blur": "5204ba0d557839772ef5a4196a052c3e",
    "gaussian_noise": "ecc4d366eac432bdf25c024086f5e97d",
    "glass_blur": "0bf384f38e5ccbf8dd479d9059b913e1",
    "impulse_noise": "3b3c210ddfa0b5cb918ff4537a429fef",
    "jpeg_compression": "c851b7f1324e1d2ffddeb76920576d11",
    "labels": "bb4026e9ce52996b95f439544568cdb2",
    "motion_blur": "732a7e2e54152ff97c742d4c388c5516",
    "pixelate": "96c00c60f144539e14cffb02ddbd0640",
    "saturate": "c0697e9fdd646916a61e9c312c77bf6b",
    "shot_noise": "b0a1fa6e1e465a747c1b204b1914048a",
    "snow": "0237be164583af146b7b144e73b43465",
    "spatter": "12ccf41d62564d36e1f6a6ada5022728",
    "speckle_noise": "e3f215b1a0f9fd9fd6f0d1cf94a7ce99",
    "zoom_blur": "0204613400c034a81c4830d5df81cb82",
}


@dataclass(frozen=True, kw_only=True)
class CifarC(PublishedDataset):
    """cifar10-c:fog.3 is one corruption at one severity, cifar10-c:fog all five, cifar10-c everything.

    Everything is the 15 corruptions of the benchmark, in alphabetical order, each from severity 1 to 5;
    the four further ones of the archive are selected by name. The accuracy on everything is one minus the
    unnormalised mean corruption error.
    """

    shape: ClassVar[tuple[int, int, int]] = (3, 32, 32)
    sizes: ClassVar[dict[str, int]] = {"test": 10_000}  # images of one corruption at one severity
    folder: ClassVar[str]
    archive: ClassVar[Remote]
    md5s: ClassVar[dict[str, str]]

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

    def remotes(self, split: str) -> list[Remote]:
        return [self.archive]

    def parts(self, split: str) -> list[DataFile]:
        """The file of labels, then a file per corruption."""
        wanted = ["labels", *dict.fromkeys(name for name, _ in self._blocks())]
        paths = self.all_of(split, [f"{self.folder}/{name}.npy" for name in wanted])
        return [DataFile(path, self.md5s[name]) for path, name in zip(paths, wanted, strict=True)]

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
            for part in parts:
                if (md5 := content_hash.md5_of(part.path)) != part.md5:
                    expected = f"the file of the data set {self.name} whose MD5 is {part.md5}"
                    raise damaged(part.path, expected, f"its MD5 is {md5}", "Remove it and get it again.")
            arrays, labels = self._arrays(split)
            chunks = (
                arrays[name][(severity - 1) * size : severity * size].transpose(0, 3, 1, 2)
                for name, severity in self._blocks()
            )
            return content_hash.pixels_hash((len(labels), *self.shape), chunks, labels)

        files = [(part.path.name, part.path) for part in parts]
        return content_hash.remembered(cache, (self.name, split), files, make)

    def _blocks(self) -> list[tuple[str, int]]:
        """(corruption, severity) of each ten thousand images."""
        word, _, severity = (self.argument or "").partition(".")
        names = (word,) if word else CORRUPTIONS
        return [(name, number) for name in names for number in SEVERITIES if severity in ("", str(number))]

    def _arrays(self, split: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Memory maps (50000, 32, 32, 3) by corruption, and the labels of all images int64 (N,)."""
        parts = self.parts(split)
        names = dict.fromkeys(name for name, _ in self._blocks())
        of_labels, *images = self._opened(parts, ["labels", *names])
        labels = of_labels.astype(np.int64).reshape(len(SEVERITIES), -1)
        chosen = np.concatenate([labels[severity - 1] for _, severity in self._blocks()])
        check_labels(self.name, chosen, self.class_names)
        return dict(zip(names, images, strict=True)), chosen

    def _opened(self, parts: list[DataFile], names: list[str]) -> Iterator[np.ndarray]:
        count = len(SEVERITIES) * self.sizes["test"]
        channels, height, width = self.shape
        for part, name in zip(parts, names, strict=True):
            shape = (count,) if name == "labels" else (count, height, width, channels)
            kind = "whole numbers" if name == "labels" else "bytes"
            expected = f"{name}.npy of the data set {self.name}: {kind} of the shape {shape}"
            try:
                array = npy.mapped(part.path)
            except (ValueError, OSError) as error:
                raise damaged(part.path, expected, error) from None
            if (
                array.shape != shape
                or array.dtype.kind not in "iu"
                or (kind == "bytes" and array.itemsize > 1)
            ):
                raise damaged(part.path, expected, f"it holds {array.dtype} {array.shape}")
            yield array


@dataclass(frozen=True, kw_only=True)
class Cifar10C(CifarC):
    """CIFAR-10-C."""

    folder: ClassVar[str] = "CIFAR-10-C"
    folders: ClassVar[tuple[str, ...]] = (".", "cifar10-c")
    class_names: ClassVar[tuple[str, ...]] = cifar.Cifar10.class_names
    normalization: ClassVar[str] = "cifar10"
    md5s: ClassVar[dict[str, str]] = CIFAR10_C
    archive: ClassVar[Remote] = Remote(
        "https://zenodo.org/records/2535967/files/CIFAR-10-C.tar",
        "56bf5dcef84df0e2308c6dcbcbbd8499",
        "2.9 GB",
        "CIFAR-10-C",
    )


@dataclass(frozen=True, kw_only=True)
class Cifar100C(CifarC):
    """CIFAR-100-C, with the fine classes."""

    folder: ClassVar[str] = "CIFAR-100-C"
    folders: ClassVar[tuple[str, ...]] = (".", "cifar100-c")
    class_names: ClassVar[tuple[str, ...]] = cifar.Cifar100.class_names
    normalization: ClassVar[str] = "cifar100"
    md5s: ClassVar[dict[str, str]] = CIFAR100_C
    archive: ClassVar[Remote] = Remote(
        "https://zenodo.org/records/3555552/files/CIFAR-100-C.tar",
        "11f0ed0f1191edbf9fa23466ae6021d3",
        "2.9 GB",
        "CIFAR-100-C",
    )
