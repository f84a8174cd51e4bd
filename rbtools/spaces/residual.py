"""The spaces in the theory of NAS-RobBench-201 (Wu et al., ICLR 2024, equations 1 and 2), with any depth.

A network of the space fcnn computes f_1 = s_1(W_1 x), f_l = s_l(W_l f_(l-1)) / L + a_l f_(l-1), and the
logits W_L f_(L-1). The layers have no biases. The choices for each layer are the activation s_l and whether
the layer has a skip connection (a_l is 1) or not (a_l is 0). The space rescnn is the same with convolutions,
and the filter size of each layer is a further choice.

The input x is the image scaled to norm 1 (assumption 1) if the record has "inputs": "unit", and otherwise the
unchanged image. The paper lists neither activations nor sizes. The lists here were chosen for rbtools.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar, NamedTuple

from rbtools.errors import RbError

ACTIVATIONS = ("relu", "leaky", "sigmoid", "tanh", "swish")
FILTERS = (1, 3, 5, 7)
WIDTH, DEPTH = 64, 4
UNIT = "unit"
_WIDEST, _DEEPEST = 1 << 16, 1000  # larger values are typing errors
_EXACT = 1 << 53  # JSON readers keep integers exact up to this value
_LAYER = re.compile(rf"({'|'.join(ACTIVATIONS)})(\d*)(\+skip)?")


class Layer(NamedTuple):
    """A hidden layer. `filter` is 0 if the layer has no convolution."""

    activation: str
    filter: int
    skip: bool

    def __str__(self) -> str:
        return f"{self.activation}{self.filter or ''}{'+skip' * self.skip}"


Layers = tuple[Layer, ...]


def outputs(classes: int) -> int:
    """Returns the number of rows of the last layer: 1 for two classes, whose logits are (0, f)."""
    return 1 if classes == 2 else classes


@dataclass(frozen=True, kw_only=True)
class ResidualSpace:
    """The space fcnn or rescnn as a `rbtools.spaces.Space`, with networks of `depth` layers.

    `depth` is the paper's L and includes the last, linear layer. `width` is the paper's m. A layer is written
    as its activation, in rescnn the size of its filters, and `+skip` if it has a skip connection:
    relu/tanh+skip and relu3/tanh5+skip.
    """

    name: str
    filters: tuple[int, ...]
    width: int = WIDTH
    depth: int = DEPTH
    inputs: str = UNIT
    version: ClassVar[int] = 1
    sizes: ClassVar[tuple[str, ...]] = ("width", "depth")

    def __post_init__(self) -> None:
        if self.inputs not in ("raw", UNIT):
            raise RbError(
                f"The record's arch has the inputs {self.inputs!r}. Expected '{UNIT}' (images of norm 1), or"
                " no field 'inputs' (unchanged pixels)."
            )
        for what, value, least, most in (
            ("width", self.width, 1, _WIDEST),
            ("depth", self.depth, 2, _DEEPEST),
        ):
            if type(value) is not int or not least <= value <= most:
                raise RbError(
                    f"The space {self.name} has no networks with {what} {value!r}. Expected a whole number"
                    f" from {least} to {most}."
                )

    @property
    def size(self) -> int:
        """The number of architectures. `len` raises OverflowError if this number is 2^63 or more."""
        return prod(self._bases())

    def __len__(self) -> int:
        return self.size

    def indices(self, unique: bool = False) -> Iterable[int]:
        return range(self.size)  # no two architectures are equal

    def arch(self, index: int, *, classes: int = 10, shape: Iterable[int] = (3, 32, 32)) -> dict[str, Any]:
        return self._described(self._layers(self._checked(index)), classes, tuple(shape))

    def find(self, text: str) -> int:
        word = text.strip().removeprefix(f"{self.name}{self.depth}-")
        if word.isascii() and word.isdigit():
            return self._checked(int(word[:4300]))
        layers = self.parse(word)
        if len(layers) != self.depth - 1:
            raise RbError(
                f"'{text}' is a network of depth {len(layers) + 1}, but these have depth {self.depth}."
                f" Add --depth {len(layers) + 1}, or write {self.depth - 1} layers."
            )
        return self._index(layers)

    def neighbours(self, index: int) -> list[int]:
        """Returns the architectures that differ in one choice for one layer, layer by layer."""
        digits, bases = self._digits(self._checked(index)), self._bases()
        neighbours = []
        for place, base in enumerate(bases):
            others = [value for value in range(base) if value != digits[place]]
            neighbours += [_number([*digits[:place], value, *digits[place + 1 :]], bases) for value in others]
        return neighbours

    def describe(self, arch: Mapping[str, Any], classes: int, shape: Iterable[int]) -> dict[str, Any]:
        space, layers = self.of(arch)
        described = space._described(layers, classes, tuple(shape))
        return {**arch, **described, "name": arch.get("name", described["name"])}

    def of(self, arch: Mapping[str, Any]) -> tuple[ResidualSpace, Layers]:
        """Returns the space with the sizes of a record's `arch`, and its layers.

        The layers are read from `str`, otherwise from `index` or `name`. Raises RbError if all three are
        missing or if they contradict each other.
        """
        own_sizes = {"width": arch.get("width", WIDTH), "depth": arch.get("depth", DEPTH)}
        space = replace(self, **own_sizes, inputs=arch.get("inputs", "raw"))
        if "str" in arch:
            layers = self.parse(str(arch["str"]))
            space = replace(space, depth=len(layers) + 1)
            own = {"depth": space.depth, "index": space._index(layers)}
            for key, value in own.items():
                if arch.get(key) not in (None, value):
                    raise RbError(
                        f"The architecture {arch['str']} has the {key} {value}, but {arch[key]} is given."
                        f" Leave out the {key}, or correct it."
                    )
            return space, layers
        for key in ("index", "name"):
            if key in arch:
                return space, space._layers(space.find(str(arch[key])))
        raise RbError(
            f"The record's arch names the space {self.name} but no architecture. Expected 'str'"
            f" ({self._example}), or 'depth' and 'index'."
        )

    def parse(self, text: str) -> Layers:
        """Returns the layers that the text describes. Raises RbError with the name of an invalid layer."""
        return tuple(self._layer(word, place) for place, word in enumerate(text.strip().split("/"), 1))

    def _layer(self, word: str, place: int) -> Layer:
        match = _LAYER.fullmatch(word.strip())
        if match is None or bool(match[2]) != bool(self.filters):
            raise RbError(
                f"Layer {place} of the network is '{word}'. Expected one of {', '.join(ACTIVATIONS)}"
                f"{' and the size of its filters' if self.filters else ''}, with or without +skip from the"
                f" second layer on, as in {self._example}."
            )
        if match[3] and place == 1:
            raise RbError(f"The first layer is '{word}', but +skip needs a layer before it. Leave out +skip.")
        if self.filters and int(match[2]) not in self.filters:
            known = ", ".join(map(str, self.filters))
            raise RbError(f"Layer {place} has filters of size {match[2]}. Choose from: {known}.")
        return Layer(match[1], int(match[2] or 0), bool(match[3]))

    @property
    def _example(self) -> str:
        return "relu3/tanh5+skip" if self.filters else "relu/tanh+skip"

    def _bases(self) -> list[int]:
        """Returns the number of choices for each digit of an index, beginning with the last layer."""
        one = [len(ACTIVATIONS), *([len(self.filters)] if self.filters else [])]
        return [*(self.depth - 2) * [*one, 2], *one]

    def _digits(self, index: int) -> list[int]:
        digits = []
        for base in reversed(self._bases()):
            index, digit = divmod(index, base)
            digits.append(digit)
        return digits[::-1]

    def _layers(self, index: int) -> Layers:
        digits = iter(self._digits(index))
        layers = []
        for number in range(self.depth - 1, 0, -1):
            activation = ACTIVATIONS[next(digits)]
            size = self.filters[next(digits)] if self.filters else 0
            layers.append(Layer(activation, size, number > 1 and bool(next(digits))))
        return tuple(layers[::-1])

    def _index(self, layers: Layers) -> int:
        digits: list[int] = []
        for number, layer in reversed(list(enumerate(layers))):
            digits.append(ACTIVATIONS.index(layer.activation))
            digits += [self.filters.index(layer.filter)] if self.filters else []
            digits += [int(layer.skip)] if number else []
        return _number(digits, self._bases())

    def _checked(self, index: int) -> int:
        if not 0 <= index < self.size:
            raise RbError(
                f"The space {self.name} has no index {index} at depth {self.depth}. Indices go from 0 to"
                f" {self.size - 1}."
            )
        return index

    def _described(self, layers: Layers, classes: int, shape: tuple[int, ...]) -> dict[str, Any]:
        index = self._index(layers)
        params, macs = self._costs(layers, classes, shape)
        return {
            "space": self.name,
            "name": f"{self.name}{self.depth}-{index}",
            **({"index": index} if self.size <= _EXACT else {}),
            "str": "/".join(map(str, layers)),
            "params": params,
            "macs": macs,
            "skips": sum(layer.skip for layer in layers),
            **{name: sum(layer.activation == name for layer in layers) for name in ACTIVATIONS},
            **({"receptive": 1 + sum(layer.filter - 1 for layer in layers)} if self.filters else {}),
            "width": self.width,
            "depth": self.depth,
            **({"inputs": self.inputs} if self.inputs == UNIT else {}),
        }

    def _costs(self, layers: Layers, classes: int, shape: tuple[int, ...]) -> tuple[int, int]:
        channels, *sides = shape
        places = prod(sides)
        if not self.filters:
            channels, places = channels * places, 1
        params, inputs = 0, channels
        for layer in layers:
            params += max(layer.filter, 1) ** 2 * inputs * self.width
            inputs = self.width
        last = places * self.width * outputs(classes)
        return params + last, params * places + last


def _number(digits: list[int], bases: list[int]) -> int:
    number = 0
    for digit, base in zip(digits, bases, strict=True):
        number = number * base + digit
    return number


def drawn(size: int, key: str) -> Iterator[int]:
    """Yields each index below `size` once, in an order that `key` determines, without storing all of them."""
    seen: set[int] = set()
    number = 0
    while len(seen) < size:
        # 64 bits more than `size` has, so that the bias of the remainder is below 2^-64.
        digest = hashlib.shake_256(f"{key}:{number}".encode()).digest(size.bit_length() // 8 + 9)
        index = int.from_bytes(digest, "big") % size
        number += 1
        if index not in seen:
            seen.add(index)
            yield index


def fcnn() -> ResidualSpace:
    return ResidualSpace(name="fcnn", filters=())


def rescnn() -> ResidualSpace:
    return ResidualSpace(name="rescnn", filters=FILTERS)
