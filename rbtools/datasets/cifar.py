"""cifar10, cifar100 and imagenet16-120: small colour photographs in pickles.

Krizhevsky, "Learning multiple layers of features from tiny images", 2009; MD5 sums and addresses are those
that torchvision lists. Chrabaszcz, Loshchilov and Hutter, "A downsampled variant of ImageNet as an
alternative to the CIFAR datasets", 2017; MD5 sums are those of AutoDL-Projects, whose own resized files
NAS-Bench-201 used: they cannot be downloaded without asking.
"""

from __future__ import annotations

import math
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar

from rbtools import unpickle
from rbtools.datasets.base import damaged
from rbtools.datasets.published_files import Arrays, DataFile, Remote
from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.plain_files import opened, plain
from rbtools.store.archive import TarHeader
from rbtools.unpickle import Refused


@dataclass(frozen=True, kw_only=True)
class Cifar(Arrays):
    """The base of both: pickles of N x 3072 bytes, one colour plane after the other."""

    shape: ClassVar[tuple[int, int, int]] = (3, 32, 32)
    sizes: ClassVar[dict[str, int]] = {"train": 50_000, "test": 10_000}
    # split -> (file, MD5) in the order of the examples
    files: ClassVar[dict[str, tuple[tuple[str, str], ...]]]
    archive: ClassVar[Remote]
    label_key: ClassVar[str]

    def remotes(self, split: str) -> list[Remote]:
        return [self.archive]

    def parts(self, split: str) -> list[DataFile]:
        """The unpacked pickles where they are, else the archive."""
        files = dict(self.files[split])
        folder = self.folder_of(list(files), f"Unpack {self.archive.name} again.")
        if folder is not None:
            return [DataFile(folder / name, md5) for name, md5 in files.items()]
        packed = self.found(self.archive.name)
        if packed is not None:
            return [DataFile(packed, self.archive.md5)]
        layout = f"{self.archive.into}/{next(iter(files))} (torchvision's layout) or {self.archive.name}"
        raise self.not_here(split, layout)

    def read(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        names = [name for name, _ in self.files[split]]
        size = self.sizes[split] // len(names)
        expected = (
            f"a pickle of the data set {self.name}: `data` ({size} x 3072 bytes) and `{self.label_key}`"
        )
        images = np.empty((self.sizes[split], *self.shape), np.uint8)
        labels = np.empty(self.sizes[split], np.int64)
        seen = set()
        for path, name, stream in self._streams(split, names):
            with _named(path, path if path.name == name else Path(f"{path}:{name}"), expected):
                rows = slice(names.index(name) * size, (names.index(name) + 1) * size)
                fields = read_pickle(stream)
                images[rows] = planes(fields["data"], size, self.shape)
                labels[rows] = whole_numbers(fields[self.label_key], size)
            seen.add(name)
        if len(seen) < len(names):
            (part,) = self.parts(split)
            lacking = ", ".join(name for name in names if name not in seen)
            raise damaged(part.path, f"the archive {self.archive.name}", f"it lacks {lacking}")
        return images, labels

    def _streams(self, split: str, names: Sequence[str]) -> Iterator[tuple[Path, str, IO[bytes]]]:
        """(file that contains it, name, content) of each pickle, in any order."""
        parts = self.parts(split)
        path = parts[0].path
        if path.name != self.archive.name:
            for part in parts:
                with opened(part.path) as file:
                    yield part.path, part.path.name, file
            return
        try:
            with tarfile.open(plain(path), tarinfo=TarHeader) as tar:
                for member in tar:
                    name = member.name.rpartition("/")[2]
                    stream = tar.extractfile(member) if name in names else None
                    if stream is not None:
                        with stream:
                            yield path, name, stream
        except (tarfile.TarError, EOFError, OSError, ValueError, OverflowError) as error:
            raise damaged(path, f"the archive {self.archive.name}", error) from None


@contextmanager
def _named(path: Path, where: Path, expected: str) -> Iterator[None]:
    """Raise RbError, naming the file, for a pickle that is none, is refused, or holds something else."""
    try:
        yield
    except Refused as error:
        raise RbError(f"The file {where} was not read: {error}. Expected {expected}.") from None
    except MemoryError:
        raise damaged(path, expected, "it asks for more memory than there is") from None
    except Exception as error:  # pickle and numpy may raise nearly any error for a damaged file
        raise damaged(path, expected, error) from None


def read_pickle(file: IO[bytes]) -> dict[str, Any]:
    """The dict in a pickle: numpy arrays, lists, dicts, str, bytes and numbers, its keys as text.

    Text that Python 2 wrote arrives as bytes. Arrays may be read-only. Raises Refused where the pickle
    contains anything else, ValueError for a file that is no pickle.
    """
    value = unpickle.arrays(file)
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}, not a dict")
    for item in value.values():
        kind = getattr(item, "dtype", None)
        if kind is not None and kind.kind not in "biuf":
            name = f"an array of the type {kind}"
            raise Refused(name, f"it has {name}, expected numbers")
    return {
        key.decode("latin-1") if isinstance(key, bytes) else str(key): item for key, item in value.items()
    }


def planes(data: object, size: int, shape: tuple[int, int, int]) -> np.ndarray:
    """`data` of a pickle as images (N, C, H, W). Raises ValueError where it is something else."""
    pixels = math.prod(shape)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (size, pixels):
        held = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise ValueError(f"`data` is {held}, not uint8 {(size, pixels)}")
    return data.reshape(size, *shape)


def whole_numbers(values: object, size: int) -> list[int]:
    """A list of labels. Raises ValueError where it is something else, or has another length."""
    if not isinstance(values, list) or len(values) != size or not all(type(value) is int for value in values):
        raise ValueError(f"the labels are no list of {size} whole numbers")
    return values


@dataclass(frozen=True, kw_only=True)
class Cifar10(Cifar):
    """CIFAR-10: ten classes."""

    normalization: ClassVar[str] = "cifar10"
    folders: ClassVar[tuple[str, ...]] = (
        "cifar-10-batches-py",
        ".",
        "cifar10",
        "cifar10/cifar-10-batches-py",
        "cifar.python",
        "cifar.python/cifar-10-batches-py",
    )
    class_names: ClassVar[tuple[str, ...]] = tuple(
        "airplane automobile bird cat deer dog frog horse ship truck".split()
    )
    label_key: ClassVar[str] = "labels"
    files: ClassVar[dict[str, tuple[tuple[str, str], ...]]] = {
        "train": (
            ("data_batch_1", "c99cafc152244af753f735de768cd75f"),
            ("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
            ("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
            ("data_batch_4", "634d18415352ddfa80567beed471001a"),
            ("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
        ),
        "test": (("test_batch", "40351d587109b95175f43aff81a1287e"),),
    }
    archive: ClassVar[Remote] = Remote(
        ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
        "c58f30108f718f92721af3b95e74349a",
        "170 MB",
        "cifar-10-batches-py",
    )


@dataclass(frozen=True, kw_only=True)
class Cifar100(Cifar):
    """CIFAR-100 with its hundred fine classes."""

    normalization: ClassVar[str] = "cifar100"
    folders: ClassVar[tuple[str, ...]] = (
        "cifar-100-python",
        "cifar100/cifar-100-python",
        "cifar.python/cifar-100-python",
        ".",
        "cifar100",
        "cifar.python",
    )
    class_names: ClassVar[tuple[str, ...]] = tuple(
        """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
        camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
        dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
        leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid
        otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray
        road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
        sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
        wardrobe whale willow_tree wolf woman worm""".split()
    )
    label_key: ClassVar[str] = "fine_labels"
    files: ClassVar[dict[str, tuple[tuple[str, str], ...]]] = {
        "train": (("train", "16019d7e3df5f24257cddd939b257f8d"),),
        "test": (("test", "f0ef6b0ae62326f3e7ffdfab6717acfc"),),
    }
    archive: ClassVar[Remote] = Remote(
        ("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",),
        "eb9058c3a382ffc7106e4002c42a8d85",
        "169 MB",
        "cifar-100-python",
    )


@dataclass(frozen=True, kw_only=True)
class ImageNet16(Arrays):
    """The first 120 classes of ImageNet at 16x16, as NAS-Bench-201 uses them.

    Labels in the files are 1 to 1000; examples with labels up to 120 are used, as 0 to 119.

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
        files = dict(self.files[split])
        folder = self.folder_of(list(files), "Put them beside the others.")
        if folder is None:
            layout = f"{self.folders[0]}/{next(iter(files))} (AutoDL's layout of NAS-Bench-201)"
            raise self.not_here(split, layout)
        return [DataFile(folder / name, md5) for name, md5 in files.items()]

    def read(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        # One file at a time: all thousand classes together are 1 GB.
        images, labels = zip(*(self._batch(part.path) for part in self.parts(split)), strict=True)
        return np.concatenate(images), np.concatenate(labels)

    def _batch(self, path: Path) -> tuple[np.ndarray, np.ndarray]:
        expected = "a pickle of ImageNet at 16x16: `data` (N x 768 bytes) and `labels` from 1 on"
        with _named(path, path, expected), opened(path) as file:
            fields = read_pickle(file)
            size = len(fields["data"])
            images = planes(fields["data"], size, self.shape)
            labels = np.array(whole_numbers(fields["labels"], size), np.int64)
            if size and not 1 <= labels.min() <= labels.max() <= 1000:
                raise ValueError(f"its labels run from {labels.min()} to {labels.max()}, not from 1 to 1000")
        used = labels <= len(self.class_names)
        return images[used], labels[used] - 1
