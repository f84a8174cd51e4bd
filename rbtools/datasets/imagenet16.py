"""imagenet16-120: the first 120 classes of ImageNet at 16x16, as NAS-Bench-201 uses them.

Chrabaszcz, Loshchilov and Hutter, "A downsampled variant of ImageNet as an alternative to the CIFAR
datasets", 2017. MD5 sums are those of AutoDL-Projects, whose own resized files NAS-Bench-201 used; they
cannot be downloaded without asking.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.datasets import pickles
from rbtools.datasets.cifar import planes, whole_numbers
from rbtools.datasets.damage import damaged
from rbtools.datasets.published_files import Arrays, DataFile, Remote
from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.plain_files import opened

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ImageNet16(Arrays):
    """Labels in the files are 1 to 1000; examples with labels up to 120 are used, as 0 to 119.

    Classes are numbers: their order is that of the files, and they have no published names.
    """

    shape: ClassVar[tuple[int, int, int]] = (3, 16, 16)
    sizes: ClassVar[dict[str, int]] = {"train": 151_700, "test": 6_000}
    normalization: ClassVar[str] = "imagenet16-120"
    class_names: ClassVar[tuple[str, ...]] = tuple(str(number) for number in range(120))
    folders: ClassVar[tuple[str, ...]] = (
        "ImageNet16",
        "cifar.python/ImageNet16",
        "imagenet16-120",
        "imagenet16-120/ImageNet16",
        ".",
    )
    files: ClassVar[dict[str, tuple[tuple[str, str], ...]]] = {
        "train": (
            ("train_data_batch_1", "27846dcaa50de8e21a7d1a35f30f0e91"),
            ("train_data_batch_2", "c7254a054e0e795c69120a5727050e3f"),
            ("train_data_batch_3", "4333d3df2e5ffb114b05d2ffc19b1e87"),
            ("train_data_batch_4", "1620cdf193304f4a92677b695d70d10f"),
            ("train_data_batch_5", "348b3c2fdbb3940c4e9e834affd3b18d"),
            ("train_data_batch_6", "6e765307c242a1b3d7d5ef9139b48945"),
            ("train_data_batch_7", "564926d8cbf8fc4818ba23d2faac7564"),
            ("train_data_batch_8", "f4755871f718ccb653440b9dd0ebac66"),
            ("train_data_batch_9", "bb6dd660c38c58552125b1a92f86b5d4"),
            ("train_data_batch_10", "8f03f34ac4b42271a294f91bf480f29b"),
        ),
        "test": (("val_data", "3410e3017fdaefba8d5073aaa65e4bd6"),),
    }

    def remotes(self, split: str) -> list[Remote]:
        return []

    def parts(self, split: str) -> list[DataFile]:
        names = [name for name, _ in self.files[split]]
        first = self.found(*names)
        if first is None:
            raise self.not_here(split, f"{self.folders[0]}/{names[0]} (AutoDL's layout of NAS-Bench-201)")
        lacking = [name for name in names if not (first.parent / name).is_file()]
        if lacking:
            raise RbError(
                f"The folder {first.parent} lacks {', '.join(lacking)} of the data set {self.name}."
                " Put them beside the others."
            )
        return [DataFile(first.parent / name, md5) for name, md5 in self.files[split]]

    def read(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        # One file at a time: all thousand classes together are 1 GB.
        images, labels = zip(*(self._batch(part.path) for part in self.parts(split)), strict=True)
        return np.concatenate(images), np.concatenate(labels)

    def _batch(self, path: Path) -> tuple[np.ndarray, np.ndarray]:
        expected = "a pickle of ImageNet at 16x16: `data` (N x 768 bytes) and `labels` from 1 on"
        try:
            with opened(path) as file:
                fields = pickles.load(file)
            size = len(fields["data"])
            images = planes(fields["data"], size, self.shape)
            labels = np.array(whole_numbers(fields["labels"], size), np.int64)
            if size and not 1 <= labels.min() <= labels.max() <= 1000:
                raise ValueError(f"its labels run from {labels.min()} to {labels.max()}, not from 1 to 1000")
        except pickles.Refused as error:
            raise RbError(f"The file {path} was not read: {error}. Expected {expected}.") from None
        except Exception as error:  # pickle and numpy raise nearly anything for a damaged file
            raise damaged(path, expected, error) from None
        used = labels <= len(self.class_names)
        return images[used], labels[used] - 1
