"""The model zoo: networks from papers on robustness, as variants for small images that also take 224x224
pixels.

Average pooling adapts to the image size. In addition, a ResNet adapts its stem, and a transformer resizes the
image. A form determines which fields its architecture record has in addition to the name (`fields`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from rbtools.errors import RbError, unknown
from rbtools.registry import Registry

LARGEST_SMALL_IMAGE = 96  # pixels per side; for larger images a ResNet has the paper's stem
STEMS = ("cifar", "imagenet", "cifar-maxpool")
POOLS = ("global", "4x4")
SHORTCUTS = ("activation", "input")
# Fields that the weights do not show, with their values, the usual value first: the function after every
# BatchNorm, and BatchNorm's epsilon. A usual value needs no field.
TRACELESS = {"activation": ("relu", "silu", "gelu"), "eps": ("1e-5", "1e-3")}

COUNTERS = Registry("way to count a network", {"meta": "rbtools.models.meta:of_arch"})

Shape = tuple[int, int, int]


class Form(Protocol):
    """A kind of network with its sizes. The attribute `family` is the name of the module that builds it."""

    @property
    def family(self) -> str: ...

    def fields(self, arch: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
        """Returns all fields of a record except the name, for images of this shape. Raises RbError."""


def traceless(arch: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `TRACELESS` that a record has. Raises RbError for an unknown value."""
    fields = {field: arch[field] for field in TRACELESS if field in arch}
    for field, value in fields.items():
        if value not in TRACELESS[field]:
            raise RbError(
                f"Residual networks do not support the {field} {value!r}. Choose from:"
                f" {', '.join(TRACELESS[field])}."
            )
    return fields


@dataclass(frozen=True)
class ResNetForm:
    """ResNet (He et al., CVPR 2016) with `blocks` in each of four stages.

    The record's `stem` is "cifar", "imagenet" or "cifar-maxpool". "cifar" is a 3x3 convolution of stride 1
    without pooling (kuangliu/pytorch-cifar). "imagenet" is the paper's 7x7 convolution of stride 2 with
    max-pooling. "cifar-maxpool" is the 3x3 convolution with this max-pooling (huyvnphan/PyTorch_CIFAR10). The
    default depends on the size of the images. The record's `pool` is the pooling before the linear layer:
    "global", the default, averages over the complete image, and "4x4" averages over windows of 4x4, whose
    means are all passed to the linear layer (kuangliu/pytorch-cifar and wellzline/PRBenchmark). For 32x32
    images both are equal.
    """

    blocks: Sequence[int]
    bottleneck: bool = False
    family: ClassVar[str] = "resnet"

    def fields(self, arch: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
        stem = arch.get("stem", STEMS[min(shape[1:]) > LARGEST_SMALL_IMAGE])
        if stem not in STEMS:
            raise RbError(f"A ResNet does not support the stem {stem!r}. Choose from: {', '.join(STEMS)}.")
        if arch.get("pool", POOLS[0]) not in POOLS:
            raise RbError(
                f"A ResNet does not support the pool {arch['pool']!r}. Choose from: {', '.join(POOLS)}."
            )
        return {"stem": stem, **({"pool": arch["pool"]} if "pool" in arch else {}), **traceless(arch)}

    def windows(self, fields: Mapping[str, Any], shape: Shape) -> int:
        """Returns the number of 4x4 windows. Raises RbError for images that are too small."""
        halved = {"cifar": 3, "cifar-maxpool": 4, "imagenet": 5}[fields["stem"]]
        high, wide = (-(-side // 2**halved) // 4 for side in shape[1:])
        if not high * wide:
            raise RbError(
                f"Images of {shape[1]}x{shape[2]} pixels are too small for a ResNet with the stem"
                f" {fields['stem']} and the pool 4x4. Leave out the pool, or choose larger images."
            )
        return int(high * wide)


@dataclass(frozen=True)
class PreActResNetForm:
    """Pre-activation ResNet (He et al., ECCV 2016): blocks normalise and activate before each convolution.

    If `final_norm` is true, BatchNorm and ReLU follow the last block, as in locuslab/robust_overfitting. Both
    layers are missing in kuangliu/pytorch-cifar. The record's `shortcut` is the input of shortcut
    convolutions: "activation", the default, is the block's input after BatchNorm and ReLU, and "input" the
    block's input itself (locuslab/fast_adversarial, RobustBench's Wong2020Fast and
    Andriushchenko2020Understanding).
    """

    blocks: Sequence[int]
    final_norm: bool = True
    family: ClassVar[str] = "preactresnet"

    def fields(self, arch: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
        if arch.get("shortcut", SHORTCUTS[0]) not in SHORTCUTS:
            raise RbError(
                f"A pre-activation ResNet does not support the shortcut {arch['shortcut']!r}. Choose from:"
                f" {', '.join(SHORTCUTS)}."
            )
        return {**({"shortcut": arch["shortcut"]} if "shortcut" in arch else {}), **traceless(arch)}


@dataclass(frozen=True)
class WideResNetForm:
    """Wide ResNet (Zagoruyko and Komodakis, 2016) of depth 6n+4 and widths 16, 32, 64 times `widen`."""

    depth: int
    widen: int
    family: ClassVar[str] = "wideresnet"

    def fields(self, arch: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
        return traceless(arch)


@dataclass(frozen=True)
class VGGForm:
    """VGG with BatchNorm for CIFAR (kuangliu/pytorch-cifar), with five stages and one linear layer."""

    convs: Sequence[int]
    widths: ClassVar[Sequence[int]] = (64, 128, 256, 512, 512)
    family: ClassVar[str] = "vgg"

    def fields(self, arch: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class SimpleCNNForm:
    """The four layers of MNISTNet (advbench; PyTorch's own MNIST example)."""

    side: ClassVar[int] = 12  # the largest side of the features for the linear layers
    family: ClassVar[str] = "simplecnn"

    def fields(self, arch: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
        if min(shape[1:]) < 6:
            raise RbError(
                f"simplecnn needs images of at least 6x6 pixels, but these have {shape[1]}x{shape[2]}."
                " Choose another model."
            )
        return {}


@dataclass(frozen=True)
class ViT:
    """Vision transformer (Dosovitskiy et al., ICLR 2021; Touvron et al., ICML 2021).

    The record's `patch` (default 16) and `side` (default 224) are the side lengths of a patch and of the
    network's images in pixels. The network resizes images of another size.
    """

    width: int
    depth: int
    family: ClassVar[str] = "vit"

    @property
    def heads(self) -> int:
        return self.width // 64

    def fields(self, arch: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
        patch, side = arch.get("patch", 16), arch.get("side", 224)
        if not (isinstance(patch, int) and isinstance(side, int) and 0 < patch <= side and not side % patch):
            raise RbError(
                f"A vision transformer cannot divide images with sides of {side} into patches of {patch}."
                " Expected whole numbers, the first a multiple of the second, such as 224 and 16."
            )
        return {name: arch[name] for name in ("patch", "side") if name in arch}


FORMS: dict[str, Form] = {
    "simplecnn": SimpleCNNForm(),
    "vgg11": VGGForm((1, 1, 2, 2, 2)),
    "vgg13": VGGForm((2, 2, 2, 2, 2)),
    "vgg16": VGGForm((2, 2, 3, 3, 3)),
    "vgg19": VGGForm((2, 2, 4, 4, 4)),
    "resnet18": ResNetForm((2, 2, 2, 2)),
    "resnet34": ResNetForm((3, 4, 6, 3)),
    "resnet50": ResNetForm((3, 4, 6, 3), bottleneck=True),
    "resnet101": ResNetForm((3, 4, 23, 3), bottleneck=True),
    "resnet152": ResNetForm((3, 8, 36, 3), bottleneck=True),
    "preactresnet18": PreActResNetForm((2, 2, 2, 2)),
    "preactresnet18-kuangliu": PreActResNetForm((2, 2, 2, 2), final_norm=False),
    "wrn-28-10": WideResNetForm(28, 10),
    "wrn-34-10": WideResNetForm(34, 10),
    "vit-s": ViT(384, 12),
    "vit-b": ViT(768, 12),
    "vit-l": ViT(1024, 24),
    "deit-ti": ViT(192, 12),
    "deit-s": ViT(384, 12),
}


def form(name: str) -> Form:
    """Returns the form with this name, also for `wrn-DEPTH-WIDTH`. Raises RbError for an unknown name."""
    known = FORMS.get(name)
    wide = re.fullmatch(r"wrn-(\d{1,4})-(\d{1,3})", name)
    if known is None and wide and int(wide[1]) >= 10 and int(wide[1]) % 6 == 4 and int(wide[2]):
        return WideResNetForm(int(wide[1]), int(wide[2]))
    if known is None:
        raise unknown("model", name, FORMS)
    return known


def completed(arch: Mapping[str, Any], shape: Iterable[int]) -> dict[str, Any]:
    """Returns the name and all fields that determine the network. Raises RbError for an invalid one."""
    name = arch.get("name")
    if not isinstance(name, str):
        raise RbError(
            "The record's arch names the space zoo but no model."
            f" Expected a 'name', one of: {', '.join(FORMS)}."
        )
    in_channels, height, width = shape
    return {"name": name, **form(name).fields(arch, (in_channels, height, width))}


class ListedSpace:
    """A plain list of networks by name, as a `rbtools.spaces.Space`. An index is a position in the list."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    sizes: ClassVar[tuple[str, ...]] = ()

    def names(self) -> list[str]:
        """Returns the names of all networks."""
        raise NotImplementedError

    def describe(self, arch: Mapping[str, Any], classes: int, shape: Iterable[int]) -> dict[str, Any]:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.names())

    def indices(self, unique: bool = False) -> Iterable[int]:
        return range(len(self))

    def arch(self, index: int, *, classes: int = 10, shape: Iterable[int] = (3, 32, 32)) -> dict[str, Any]:
        return self.describe({"space": self.name, "name": self._named(index)}, classes, shape)

    def find(self, text: str) -> int:
        word = text.strip()
        if word.isascii() and word.isdigit():
            word = self._named(int(word[:9]))
        if word not in self.names():
            raise unknown(f"{self.name} model", word, self.names())
        return self.names().index(word)

    def neighbours(self, index: int) -> list[int]:
        raise RbError(
            f"{self._named(index)} has no neighbours, because the space {self.name} is a plain list."
            " Neighbours are defined for nasbench201."
        )

    def _named(self, index: int) -> str:
        names = self.names()
        if not 0 <= index < len(names):
            raise RbError(
                f"The space {self.name} has no model with the index {index}. Indices go from 0 to"
                f" {len(names) - 1}: {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}."
            )
        return names[index]


@dataclass(frozen=True, kw_only=True)
class Zoo(ListedSpace):
    """The model zoo."""

    name: ClassVar[str] = "zoo"

    def names(self) -> list[str]:
        return list(FORMS)

    def indices(self, unique: bool = False) -> Iterable[int]:
        forms = list(FORMS.values())
        return [i for i, one in enumerate(forms) if not (unique and one in forms[:i])]

    def describe(self, arch: Mapping[str, Any], classes: int, shape: Iterable[int]) -> dict[str, Any]:
        shape = tuple(shape)
        fields = {"space": self.name, **completed(arch, shape)}
        params, macs = COUNTERS.load("meta")(tuple(fields.items()), classes, shape)
        return {**arch, **fields, "params": params, "macs": macs}
