"""cifar10 and cifar100: 32x32 colour photographs in pickles, unpacked or in their archive.

Krizhevsky, "Learning multiple layers of features from tiny images", 2009. MD5 sums and addresses are those
that torchvision lists.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar

from rbtools.datasets import pickles
from rbtools.datasets.damage import damaged
from rbtools.datasets.published_files import Arrays, DataFile, Remote
from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.plain_files import opened, plain
from rbtools.store.tar_headers import TarHeader


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
        names = [name for name, _ in self.files[split]]
        first = self.found(*names)
        if first is not None:
            lacking = [name for name in names if not (first.parent / name).is_file()]
            if lacking:
                raise RbError(
                    f"The folder {first.parent} lacks {', '.join(lacking)} of the data set {self.name}."
                    f" Unpack {self.archive.name} again."
                )
            return [DataFile(first.parent / name, md5) for name, md5 in self.files[split]]
        packed = self.found(self.archive.name)
        if packed is not None:
            return [DataFile(packed, self.archive.md5)]
        layout = f"{self.archive.into}/{names[0]} (torchvision's layout) or {self.archive.name}"
        raise self.not_here(split, layout)

    def read(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        names = [name for name, _ in self.files[split]]
        size = self.sizes[split] // len(names)
        images = np.empty((self.sizes[split], *self.shape), np.uint8)
        labels = np.empty(self.sizes[split], np.int64)
        seen = set()
        for path, name, stream in self._streams(split):
            place = slice(names.index(name) * size, (names.index(name) + 1) * size)
            where = path if path.name == name else Path(f"{path}:{name}")
            images[place], labels[place] = self._batch(path, where, stream, size)
            seen.add(name)
        if len(seen) < len(names):
            (part,) = self.parts(split)
            lacking = ", ".join(name for name in names if name not in seen)
            raise damaged(part.path, f"the archive {self.archive.name}", f"it lacks {lacking}")
        return images, labels

    def _streams(self, split: str) -> Iterator[tuple[Path, str, IO[bytes]]]:
        """(file that contains it, name, content) of each pickle, in any order."""
        parts = self.parts(split)
        names = [name for name, _ in self.files[split]]
        if parts[0].path.name != self.archive.name:
            for part in parts:
                with opened(part.path) as file:
                    yield part.path, part.path.name, file
            return
        path = parts[0].path
        try:
            with tarfile.open(plain(path), tarinfo=TarHeader) as tar:
                for member in tar:
                    name = member.name.rpartition("/")[2]
                    stream = tar.extractfile(member) if name in names else None
                    if stream is not None:
                        with closing(stream):
                            yield path, name, stream
        except (tarfile.TarError, EOFError, OSError, ValueError, OverflowError) as error:
            raise damaged(path, f"the archive {self.archive.name}", error) from None

    def _batch(self, path: Path, where: Path, stream: IO[bytes], size: int) -> tuple[np.ndarray, list[int]]:
        """The images (N, 3, 32, 32) and labels of one pickle."""
        expected = (
            f"a pickle of the data set {self.name}: `data` ({size} x 3072 bytes) and `{self.label_key}`"
        )
        try:
            fields = pickles.load(stream)
            return planes(fields["data"], size, self.shape), whole_numbers(fields[self.label_key], size)
        except pickles.Refused as error:
            raise RbError(f"The file {where} was not read: {error}. Expected {expected}.") from None
        except MemoryError:
            raise damaged(path, expected, "it asks for more memory than there is") from None
        except Exception as error:  # pickle and numpy raise nearly anything for a damaged file
            raise damaged(path, expected, error) from None


def planes(data: object, size: int, shape: tuple[int, int, int]) -> np.ndarray:
    """`data` of a pickle as images (N, C, H, W). Raises ValueError where it is something else."""
    pixels = shape[0] * shape[1] * shape[2]
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (size, pixels):
        held = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise ValueError(f"`data` is {held}, not uint8 {(size, pixels)}")
    return data.reshape(size, *shape)


def whole_numbers(values: object, size: int) -> list[int]:
    """A list of labels. Raises ValueError where it is something else, or has another length."""
    if not isinstance(values, list) or len(values) != size or not all(type(one) is int for one in values):
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
