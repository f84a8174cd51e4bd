"""cifar10-c and cifar100-c: the test images under common corruptions, in numpy's files.

Hendrycks and Dietterich, "Benchmarking neural network robustness to common corruptions and perturbations",
ICLR 2019; Zenodo records 2535967 and 3555552, whose MD5 sums these are.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from rbtools.datasets import cifar, content_hash, npy, streaming
from rbtools.datasets.base import Cache, Dataset, Description, check_labels
from rbtools.datasets.corrupted_files import CIFAR10_C, CIFAR100_C, CORRUPTIONS, EXTRA
from rbtools.datasets.damage import damaged
from rbtools.datasets.published_files import DataFile, PublishedDataset, Remote, check
from rbtools.errors import RbError, near
from rbtools.lazy import np, torch
from rbtools.plain_files import plain
from rbtools.store.tar_headers import TarHeader
from rbtools.units import SEVERITIES


@dataclass(frozen=True, kw_only=True)
class CifarC(PublishedDataset):
    """cifar10-c:fog.3 is one corruption at one severity, cifar10-c:fog all five, cifar10-c everything.

    Everything is the 15 corruptions of the benchmark, in alphabetical order, each from severity 1 to 5;
    the four further ones of the archive are selected by name. The accuracy on everything is one minus the
    unnormalised mean corruption error.
    """

    shape: ClassVar[tuple[int, int, int]] = (3, 32, 32)
    sizes: ClassVar[dict[str, int]] = {"test": 10_000}  # of one corruption at one severity
    folder: ClassVar[str]
    archive: ClassVar[Remote]
    md5s: ClassVar[dict[str, str]]

    def __post_init__(self) -> None:
        self.refuse_class_map()
        word, dot, severity = (self.argument or "").partition(".")
        known = (*CORRUPTIONS, *EXTRA)
        wrong = self.argument is not None and word not in known
        if wrong or (dot and severity not in map(str, SEVERITIES)):
            base = self.name.partition(":")[0]
            problem = f"'{word}' is no corruption.{near(word, known)} It has: {', '.join(known)}"
            if not wrong:
                problem = f"'{severity}' is no severity. Severities are 1 to 5"
            raise RbError(f"The data set is '{self.name}': {problem}. Write for example {base}:fog.3.")

    def describe(self) -> Description:
        return replace(super().describe(), sizes={"test": len(self._blocks()) * self.sizes["test"]})

    def remotes(self, split: str) -> list[Remote]:
        return [self.archive]

    def parts(self, split: str) -> list[DataFile]:
        """The labels, then a file for each corruption; in the archive where it is not unpacked."""
        wanted = ["labels", *dict.fromkeys(name for name, _ in self._blocks())]
        first = self.found(*(f"{self.folder}/{name}.npy" for name in wanted))
        if first is not None:
            paths = [first.parent / f"{name}.npy" for name in wanted]
            lacking = [path.name for path in paths if not path.is_file()]
            if lacking:
                raise RbError(
                    f"The folder {first.parent} lacks {', '.join(lacking)} of the data set {self.name}."
                    f" Unpack {self.archive.name} again."
                )
            return [DataFile(path, self.md5s[path.stem]) for path in paths]
        packed = self.found(self.archive.name)
        if packed is None:
            layout = f"{self.folder}/{wanted[1]}.npy and {self.folder}/labels.npy, or {self.archive.name}"
            raise self.not_here(split, layout)
        return self._members(packed, wanted)

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

        return Dataset(
            name=self.name,
            split=split,
            classes=len(self.class_names),
            class_names=list(self.class_names),
            images=streaming.images((len(blocks) * size, *self.shape), fetch),
            labels=torch.from_numpy(labels),
        )

    def fingerprint(self, split: str, cache: Cache | None = None) -> str:
        """Covers the pixels and labels of the selected blocks, packed or not."""
        self.known(split)
        parts = self.parts(split)
        size = self.sizes["test"]

        def make() -> str:
            check(self.name, parts, self.remotes(split))
            arrays, labels = self._arrays(split)
            chunks = (
                arrays[name][(severity - 1) * size : severity * size].transpose(0, 3, 1, 2)
                for name, severity in self._blocks()
            )
            return content_hash.pixels_hash((len(labels), *self.shape), chunks, labels)

        files = [(f"{part.path.name}:{part.offset}", part.path) for part in parts]
        return content_hash.remembered(cache, (self.name, split), files, make)

    def _blocks(self) -> list[tuple[str, int]]:
        """(corruption, severity) of each ten thousand images."""
        word, _, severity = (self.argument or "").partition(".")
        names = (word,) if word else CORRUPTIONS
        return [(name, number) for name in names for number in SEVERITIES if severity in ("", str(number))]

    def _members(self, archive: Path, wanted: list[str]) -> list[DataFile]:
        """The positions of the files in the archive, which is not compressed."""
        try:
            with tarfile.open(plain(archive), "r:", tarinfo=TarHeader) as tar:
                there = {member.name.rpartition("/")[2]: member for member in tar if member.isfile()}
        except (tarfile.TarError, OSError, ValueError, OverflowError) as error:
            raise damaged(archive, f"the archive {self.archive.name}", error) from None
        lacking = [f"{name}.npy" for name in wanted if f"{name}.npy" not in there]
        if lacking:
            raise damaged(archive, f"the archive {self.archive.name}", f"it lacks {', '.join(lacking)}")
        members = {name: there[f"{name}.npy"] for name in wanted}
        return [
            DataFile(archive, self.md5s[name], one.offset_data, one.size) for name, one in members.items()
        ]

    def _arrays(self, split: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Memory maps (50000, 32, 32, 3) by corruption, and the labels of all images int64 (N,)."""
        parts = self.parts(split)
        names = dict.fromkeys(name for name, _ in self._blocks())
        given, *images = self._opened(parts, ["labels", *names])
        labels = given.astype(np.int64).reshape(len(SEVERITIES), -1)
        chosen = np.concatenate([labels[severity - 1] for _, severity in self._blocks()])
        check_labels(self.name, chosen, self.class_names)
        return dict(zip(names, images, strict=True)), chosen

    def _opened(self, parts: list[DataFile], names: list[str]) -> Iterator[np.ndarray]:
        count = len(SEVERITIES) * self.sizes["test"]
        channels, height, width = self.shape
        for part, name in zip(parts, names, strict=True):
            shape = (count,) if name == "labels" else (count, height, width, channels)
            what = "whole numbers" if name == "labels" else "bytes"
            expected = f"{name}.npy of the data set {self.name}: {what} of the shape {shape}"
            try:
                array = npy.mapped(part.path, part.offset, part.length)
            except (ValueError, OSError) as error:
                raise damaged(part.path, expected, error) from None
            if (
                array.shape != shape
                or array.dtype.kind not in "iu"
                or (what == "bytes" and array.itemsize > 1)
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
        ("https://zenodo.org/records/2535967/files/CIFAR-10-C.tar",),
        "56bf5dcef84df0e2308c6dcbcbbd8499",
        "2.9 GB",
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
        ("https://zenodo.org/records/3555552/files/CIFAR-100-C.tar",),
        "11f0ed0f1191edbf9fa23466ae6021d3",
        "2.9 GB",
    )
