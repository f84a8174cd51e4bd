"""cifar10, cifar100 and imagenet16-120: small colour photographs in pickles.

Krizhevsky, "Learning multiple layers of features from tiny images", 2009; MD5 sums and addresses are those
that torchvision lists. Chrabaszcz, Loshchilov and Hutter, "A downsampled variant of ImageNet as an
alternative to the CIFAR datasets", 2017; MD5 sums are those of AutoDL-Projects, whose own resized files
NAS-Bench-201 used: they cannot be downloaded without asking.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, ClassVar

from rbtools.datasets.published_files import Arrays, Remote
from rbtools.lazy import np


@dataclass(frozen=True, kw_only=True)
class Pickles(Arrays):
    """The base of all: pickles with `data`, N x C H W bytes, and labels. They are loaded after the check of
    their MD5, as torchvision does it."""

    sizes: ClassVar[dict[str, int]] = {"train": 50_000, "test": 10_000}
    shape: ClassVar[tuple[int, int, int]] = (3, 32, 32)
    content: ClassVar[str] = "a pickle"
    label_key: ClassVar[str] = "labels"
    archive: ClassVar[Remote | None] = None

    def remotes(self, split: str) -> list[Remote]:
        return [] if self.archive is None else [self.archive]

    def unpacked(self, data: bytes) -> Any:
        fields = pickle.loads(data, encoding="latin1")  # safe: the MD5 is the published one
        return fields["data"].reshape(-1, *self.shape), np.array(fields[self.label_key], np.int64)


@dataclass(frozen=True, kw_only=True)
class Cifar10(Pickles):
    """CIFAR-10: ten classes."""

    normalization: ClassVar[str] = "cifar10"
    folders: ClassVar[tuple[str, ...]] = (".", "cifar10", "cifar.python")
    class_names: ClassVar[tuple[str, ...]] = tuple(
        "airplane automobile bird cat deer dog frog horse ship truck".split()
    )
    files: ClassVar[dict[str, tuple[tuple[str, str], ...]]] = {
        "train": (
            ("cifar-10-batches-py/data_batch_1", "c99cafc152244af753f735de768cd75f"),
            ("cifar-10-batches-py/data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
            ("cifar-10-batches-py/data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
            ("cifar-10-batches-py/data_batch_4", "634d18415352ddfa80567beed471001a"),
            ("cifar-10-batches-py/data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
        ),
        "test": (("cifar-10-batches-py/test_batch", "40351d587109b95175f43aff81a1287e"),),
    }
    archive: ClassVar[Remote | None] = Remote(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        "170 MB",
        "cifar-10-batches-py",
    )


@dataclass(frozen=True, kw_only=True)
class Cifar100(Pickles):
    """CIFAR-100 with its hundred fine classes."""

    normalization: ClassVar[str] = "cifar100"
    folders: ClassVar[tuple[str, ...]] = (".", "cifar100", "cifar.python")
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
        "train": (("cifar-100-python/train", "16019d7e3df5f24257cddd939b257f8d"),),
        "test": (("cifar-100-python/test", "f0ef6b0ae62326f3e7ffdfab6717acfc"),),
    }
    archive: ClassVar[Remote | None] = Remote(
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        "169 MB",
        "cifar-100-python",
    )


@dataclass(frozen=True, kw_only=True)
class ImageNet16(Pickles):
    """The first 120 classes of ImageNet at 16x16, as NAS-Bench-201 uses them.

    Labels in the files are 1 to 1000; examples with labels up to 120 are used, as 0 to 119.

    Classes are numbers: their order is that of the files, and they have no published names.
    """

    shape: ClassVar[tuple[int, int, int]] = (3, 16, 16)
    sizes: ClassVar[dict[str, int]] = {"train": 151_700, "test": 6_000}
    normalization: ClassVar[str] = "imagenet16-120"
    class_names: ClassVar[tuple[str, ...]] = tuple(str(number) for number in range(120))
    folders: ClassVar[tuple[str, ...]] = (".", "cifar.python", "imagenet16-120")
    files: ClassVar[dict[str, tuple[tuple[str, str], ...]]] = {
        "train": (
            ("ImageNet16/train_data_batch_1", "27846dcaa50de8e21a7d1a35f30f0e91"),
            ("ImageNet16/train_data_batch_2", "c7254a054e0e795c69120a5727050e3f"),
            ("ImageNet16/train_data_batch_3", "4333d3df2e5ffb114b05d2ffc19b1e87"),
            ("ImageNet16/train_data_batch_4", "1620cdf193304f4a92677b695d70d10f"),
            ("ImageNet16/train_data_batch_5", "348b3c2fdbb3940c4e9e834affd3b18d"),
            ("ImageNet16/train_data_batch_6", "6e765307c242a1b3d7d5ef9139b48945"),
            ("ImageNet16/train_data_batch_7", "564926d8cbf8fc4818ba23d2faac7564"),
            ("ImageNet16/train_data_batch_8", "f4755871f718ccb653440b9dd0ebac66"),
            ("ImageNet16/train_data_batch_9", "bb6dd660c38c58552125b1a92f86b5d4"),
            ("ImageNet16/train_data_batch_10", "8f03f34ac4b42271a294f91bf480f29b"),
        ),
        "test": (("ImageNet16/val_data", "3410e3017fdaefba8d5073aaa65e4bd6"),),
    }

    def unpacked(self, data: bytes) -> Any:
        images, labels = super().unpacked(data)  # all thousand classes together are 1 GB
        used = labels <= len(self.class_names)
        return images[used], labels[used] - 1
