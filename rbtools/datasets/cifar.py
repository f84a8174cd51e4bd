"""cifar10, cifar100 and imagenet16-120: small colour photographs in pickles.

Krizhevsky, "Learning multiple layers of features from tiny images", 2009; MD5 sums and addresses are from
torchvision. Chrabaszcz, Loshchilov and Hutter, "A downsampled variant of ImageNet as an alternative to the
CIFAR datasets", 2017; MD5 sums are from AutoDL-Projects, whose resized images are the ones that NAS-Bench-201
used. The files of imagenet16-120 are given only to those who ask its authors.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, ClassVar

from rbtools.datasets.published_files import Arrays
from rbtools.lazy import np


@dataclass(frozen=True, kw_only=True)
class Pickles(Arrays):
    """Data sets in pickles with labels and `data`, N x (C H W) bytes, loaded after their MD5 was checked."""

    sizes: ClassVar[dict[str, int]] = {"train": 50_000, "test": 10_000}
    shape = (3, 32, 32)
    form = "a pickle"
    label_key: ClassVar[str] = "labels"

    def unpacked(self, data: bytes) -> Any:
        fields = pickle.loads(data, encoding="latin1")  # safe: the MD5 is the published one
        return fields["data"].reshape(-1, *self.shape), np.array(fields[self.label_key], np.int64)


@dataclass(frozen=True, kw_only=True)
class Cifar10(Pickles):
    """CIFAR-10: ten classes."""

    normalization = "cifar10"
    folders = (".", "cifar10", "cifar.python")
    class_names = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())


@dataclass(frozen=True, kw_only=True)
class Cifar100(Pickles):
    """CIFAR-100 with its hundred fine classes."""

    normalization = "cifar100"
    folders = (".", "cifar100", "cifar.python")
    class_names = tuple(
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


@dataclass(frozen=True, kw_only=True)
class ImageNet16(Pickles):
    """The first 120 classes of ImageNet at 16x16, as NAS-Bench-201 uses them.

    Labels in the files are 1 to 1000. Examples with labels above 120 are left out, and 1 is subtracted from
    the other labels. The published classes have no names, so the class names are numbers.
    """

    shape = (3, 16, 16)
    sizes: ClassVar[dict[str, int]] = {"train": 151_700, "test": 6_000}
    normalization = "imagenet16-120"
    class_names = tuple(str(number) for number in range(120))
    folders = (".", "cifar.python", "imagenet16-120")

    def unpacked(self, data: bytes) -> Any:
        images, labels = super().unpacked(data)  # all thousand classes together are 1 GB
        used = labels <= len(self.class_names)
        return images[used], labels[used] - 1
