"""NAS-Bench-201 (Dong & Yang, ICLR 2020): 15,625 cells in a fixed skeleton, as the space of rb-arch.

All published indices, strings, isomorphism classes and costs are computed without torch or NumPy. A cell has
four nodes. Node j is the sum over i < j of an operation on node i, and node 3 is the output. A cell is stored
as `ops`, six indices into `OPS`, one for each edge in `EDGES`. Dong & Yang (D-X-Y/AutoDL-Projects) shuffled
the list of all cells, and Jung et al. (ICLR 2023, steffen-jung/robustness-dataset) published which cells are
the same graph.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from random import Random
from typing import Any, ClassVar, NamedTuple

from rbtools.errors import RbError, near

Ops = tuple[int, ...]

OPS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
NONE, SKIP, CONV1, CONV3, POOL = range(5)
EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
FORM = "|op~0|+|op~0|op~1|+|op~0|op~1|op~2|"
SIZE: int = len(OPS) ** len(EDGES)
CHANNELS, CELLS = 16, 5
Shape = tuple[int, int, int]
_KERNEL = (0, 0, 1, 9, 0)  # the number of kernel weights of each operation
_PREFIX = "nb201-"
_SEED = 88

_TEXTS = [
    [before + op + after for op in OPS]
    for before, after in [("|", "~0|+"), ("|", "~0"), ("|", "~1|+"), ("|", "~0"), ("|", "~1"), ("|", "~2|")]
]


def to_string(ops: Ops) -> str:
    """Returns the published string, such as `|none~0|+|none~0|none~1|+|none~0|none~1|skip_connect~2|`."""
    a, b, c, d, e, f = ops
    first, second, third, fourth, fifth, sixth = _TEXTS
    return first[a] + second[b] + third[c] + fourth[d] + fifth[e] + sixth[f]


def parse(text: str) -> Ops:
    """Read an architecture string. The source node follows `~` or, as printed in papers, `^`.

    Raises RbError with the position of the first error, counted from 1.
    """
    ops, at = [], len(text) - len(text.lstrip())
    for edge, (source, target) in enumerate(EDGES):
        opening = "|" if edge == 0 else "|+|" if source == 0 else "|"
        at = _expect(text, at, opening)
        end = next((i for i in range(at, len(text)) if text[i] in "~^|+"), len(text))
        name = text[at:end]
        if name not in OPS:
            wanted = f"an operation for the edge {source} to {target} ({', '.join(OPS)})"
            raise _no_parse(text, at, wanted, name, near(name, OPS))
        ops.append(OPS.index(name))
        if text[end : end + 1] not in ("~", "^"):
            raise _no_parse(text, end, f"'~{source}', the node that the edge comes from")
        at = _expect(text, end + 1, str(source))
    at = _expect(text, at, "|")
    if text[at:].strip():
        raise _no_parse(text, at, "the end, after six edges")
    return tuple(ops)


def _expect(text: str, at: int, wanted: str) -> int:
    for offset, character in enumerate(wanted):
        if text[at + offset : at + offset + 1] != character:
            raise _no_parse(text, at + offset, f"'{wanted[offset:]}'")
    return at + len(wanted)


def _no_parse(text: str, at: int, wanted: str, actual: str | None = None, hint: str = "") -> RbError:
    rest = text[at:] if actual is None else actual
    seen = f"'{rest[:24]}{'...' if len(rest) > 24 else ''}'" if rest else "nothing"
    if at >= len(text):
        seen = "its end"
    shown = text if len(text) <= 200 else text[:200] + "..."
    return RbError(
        f"Architecture string '{shown}' does not parse at character {at + 1}:"
        f" found {seen}, expected {wanted}.{hint} The form is {FORM}."
    )


@cache
def cells() -> tuple[Ops, ...]:
    """All 15,625 cells in the published order: `cells()[13714]` is architecture 13714."""

    def top_bits() -> Iterator[int]:
        """Yields the top 27 bits of each word of the generator (for every second word, 26 bits and a zero).

        The bits come from `random()`, the only method whose sequence Python promises to keep. Each float
        contains 27 bits of one word and 26 bits of the next.
        """
        draw = Random(_SEED).random
        while True:
            both = int(draw() * 9007199254740992.0)  # 2**53: exact
            yield both >> 26
            yield (both & 0x3FFFFFF) << 1

    listed = list(itertools.product(range(len(OPS)), repeat=len(EDGES)))
    words = top_bits()
    for last in range(len(listed) - 1, 0, -1):
        # Fisher-Yates as in `random.shuffle`: the top bits of a word, drawn again until in range.
        shift = 27 - (last + 1).bit_length()
        while (chosen := next(words) >> shift) > last:
            pass
        listed[last], listed[chosen] = listed[chosen], listed[last]
    return tuple(listed)


@cache
def index_by_ops() -> dict[Ops, int]:
    return {ops: index for index, ops in enumerate(cells())}


@cache
def classes() -> tuple[int, ...]:
    """For each index, the smallest index of a cell with the same graph. There are 6,466 different values.

    Two cells are the same graph if the rule of Dong & Yang gives the same string for both cells. The string
    of an edge is '#' if its source is zero or its operation is `none`, that of its source for `skip_connect`,
    and '(source)@op' for other operations. The string of a node consists of the sorted strings of all its
    edges, including '#', joined by '+'. Nodes 1 and 2 have only 5 and 125 different strings.
    """
    every = range(len(OPS))
    from_0 = [_edge_text("0", op) for op in every]
    texts: dict[Ops, str] = {}
    for a in every:
        from_1 = [_edge_text(from_0[a], op) for op in every]
        for b, c in itertools.product(every, every):
            node_2 = "+".join(sorted((from_0[b], from_1[c])))
            from_2 = [_edge_text(node_2, op) for op in every]
            for d, e, f in itertools.product(every, every, every):
                texts[a, b, c, d, e, f] = "+".join(sorted((from_0[d], from_1[e], from_2[f])))
    first: dict[str, int] = {}
    return tuple(first.setdefault(texts[ops], index) for index, ops in enumerate(cells()))


def _edge_text(source: str, op: int) -> str:
    if op == NONE or source == "#":
        return "#"
    return source if op == SKIP else f"({source})@{OPS[op]}"


@cache
def unique() -> tuple[int, ...]:
    """The 6,466 indices that are the smallest in their class, in ascending order."""
    return tuple(index for index, first in enumerate(classes()) if index == first)


class Cost(NamedTuple):
    """The parameters (or multiply-adds) of the skeleton, and of one 1x1 or 3x3 convolution in all cells."""

    skeleton: int
    conv1: int
    conv3: int

    def of(self, ops: Ops) -> int:
        return self.skeleton + ops.count(CONV1) * self.conv1 + ops.count(CONV3) * self.conv3


@cache
def param_cost(channels: int, cells: int, classes: int, in_channels: int) -> Cost:
    """Counts the trainable parameters, without the running statistics of BatchNorm."""
    check_counts(channels=channels, cells=cells, classes=classes, in_channels=in_channels)
    widths = [channels, 2 * channels, 4 * channels]
    stem = 9 * in_channels * channels + 2 * channels
    # A residual block: two 3x3 convolutions with BatchNorm, and a bare 1x1 on the shortcut.
    reductions = sum(9 * c * 2 * c + 4 * c + 9 * 4 * c * c + 4 * c + c * 2 * c for c in widths[:2])
    head = 2 * widths[2] + widths[2] * classes + classes
    conv1, conv3 = (cells * sum(k * c * c + 2 * c for c in widths) for k in (1, 9))
    return Cost(stem + reductions + head, conv1, conv3)


@cache
def mac_cost(channels: int, cells: int, classes: int, shape: Shape) -> Cost:
    """Counts the multiply-adds of the convolutions and the classifier for one image of `shape` (C, H, W).

    The FLOPs of AutoDL are larger by `classes`, because they include the classifier's bias.
    """
    in_channels, height, width = shape
    check_counts(channels=channels, cells=cells, classes=classes, in_channels=in_channels)
    sides = [height, width]
    # A reduction adds two branches: its convolution (stride 2, padding 1) rounds up, its pooling down.
    for number in ("first", "second"):
        convolved, pooled = [(side - 1) // 2 + 1 for side in sides], [side // 2 for side in sides]
        if convolved != pooled or 0 in pooled:
            raise RbError(
                f"A NAS-Bench-201 network cannot take images of {height}x{width} pixels: in its {number}"
                f" reduction, the convolution returns {_by(convolved)} and the shortcut {_by(pooled)}."
                " Height and width must be multiples of 4; resize or crop the images, for example to 32x32."
            )
        sides = pooled
    stages = [(channels << s, (height >> s) * (width >> s)) for s in range(3)]
    stem = 9 * in_channels * channels * height * width
    reductions = sum((9 * (c // 2) * c + 9 * c * c + (c // 2) * c) * pixels for c, pixels in stages[1:])
    conv1, conv3 = (cells * sum(k * c * c * pixels for c, pixels in stages) for k in (1, 9))
    return Cost(stem + reductions + 4 * channels * classes, conv1, conv3)


def check_counts(**counts: object) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            sizes = f"{name.replace('_', ' ')} = {value!r}"
            raise RbError(f"A NAS-Bench-201 network cannot have {sizes}. Give a whole number of 1 or more.")


def _by(sides: list[int]) -> str:
    return f"{sides[0]}x{sides[1]}"


def kernel_params(ops: Ops) -> int:
    """Returns the sum over all edges of 1 for a 1x1 and 9 for a 3x3 convolution, at most 54."""
    return ops.count(CONV1) + 9 * ops.count(CONV3)


def live_kernel_params(ops: Ops) -> int:
    """Returns `kernel_params` of only the live edges (`live_edges`).

    The value is 18 for 408 class representatives, as in Jung et al. (ICLR 2023).
    """
    return sum([_KERNEL[op] for op in itertools.compress(ops, live_edges(ops))])


def live_edges(ops: Ops) -> tuple[bool, ...]:
    """For each edge, True if it is on a path from node 0 to node 3 without `none`.

    If there is no such path, the logits are constant, and the accuracy is that of random guessing.
    """
    a, b, c, d, e, f = map(bool, ops)  # NONE is 0
    return (a and (e or (c and f)), b and f, a and c and f, d, a and e, f and (b or (a and c)))


@cache
def strings() -> tuple[str, ...]:
    """All 15,625 architecture strings in the published order."""
    return tuple(map(to_string, cells()))


def index_of(text: str) -> int:
    """Returns the published index of an architecture string. Raises RbError for another string."""
    return index_by_ops()[parse(text)]


def find(text: str) -> int:
    """Returns the index of the architecture with this index, name (nb201-13714) or string.

    Raises RbError for an index out of range or a string that cannot be parsed.
    """
    word = text.strip()
    number = word.removeprefix(_PREFIX)
    try:
        index = int(number)
    except ValueError:
        return index_of(word)
    return _checked(index)


def neighbours(index: int) -> list[int]:
    """Returns the 24 indices of cells that differ in one edge, sorted by edge and then by operation."""
    ops, by_ops = cells()[_checked(index)], index_by_ops()
    return [
        by_ops[tuple([*ops[:edge], op, *ops[edge + 1 :]])]
        for edge in range(len(EDGES))
        for op in range(len(OPS))
        if op != ops[edge]
    ]


def distance(record: Mapping[str, Any], other: object) -> int:
    """Returns the number of edges, 0 to 6, in which a record's cell differs from the cell `other`.

    In expressions, this function is written as `distance(13714)`. Raises RbError for a record from another
    space.
    """
    arch = record.get("arch")
    if not isinstance(arch, Mapping) or arch.get("space") != NASBench201.name:
        raise RbError("distance() compares cells of NAS-Bench-201, but the record is from another space.")
    return edit_distance(ops_of(arch), cells()[find(str(other))])


def edit_distance(first: Ops, second: Ops) -> int:
    """Returns the number of edges that differ, 0 to 6."""
    return sum(a != b for a, b in zip(first, second, strict=True))


def ops_of(arch: Mapping[str, Any]) -> Ops:
    """Returns the cell of a record's `arch`, from its `str`, otherwise from its `index`, otherwise from its
    `name`.

    Raises RbError if all three fields are missing, or if string and index belong to different cells.
    """
    if "str" in arch:
        ops = parse(str(arch["str"]))
        index = index_by_ops()[ops]
        if arch.get("index", index) != index:
            raise RbError(
                f"Architecture string '{to_string(ops)}' has the index {index} in NAS-Bench-201,"
                f" but the record says {arch['index']!r}. Remove the one that is wrong."
            )
        return ops
    for key in ("index", "name"):
        if key in arch:
            return cells()[find(str(arch[key]))]
    raise RbError(
        "The record's arch names the space nasbench201 but no architecture."
        f" Expected 'str' ({FORM}), 'index' (0 to {SIZE - 1}) or 'name' ({_PREFIX}13714)."
    )


def arch(
    index: int,
    *,
    channels: int = CHANNELS,
    cells: int = CELLS,
    classes: int = 10,
    shape: Iterable[int] = (3, 32, 32),
) -> dict[str, Any]:
    """Returns a description of an architecture in the form of a record's `arch`, for images `shape` (C, H,
    W).

    The counts include the dead convolutions of this index, so the class representative may have other counts.
    Raises RbError for an index out of range or a network that cannot be built.
    """
    return _describe(_checked(index), channels, cells, classes, tuple(shape))


def _describe(index: int, channels: int, depth: int, outputs: int, shape: tuple[int, ...]) -> dict[str, Any]:
    ops = cells()[index]
    return {
        "space": NASBench201.name,
        "name": f"{_PREFIX}{index}",
        "index": index,
        "str": to_string(ops),
        "class": classes()[index],
        "params": param_cost(channels, depth, outputs, shape[0]).of(ops),
        "macs": mac_cost(channels, depth, outputs, shape).of(ops),
        "kernel_params": kernel_params(ops),
        "live_kernel_params": live_kernel_params(ops),
        "none": ops.count(NONE),
        "channels": channels,
        "cells": depth,
    }


def _checked(index: int) -> int:
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < SIZE:
        raise RbError(
            f"NAS-Bench-201 has no architecture with the index {index!r}. Indices go from 0 to {SIZE - 1}."
        )
    return index


@dataclasses.dataclass(frozen=True, kw_only=True)
class NASBench201:
    """NAS-Bench-201 as a `rbtools.spaces.Space`, with `cells` cells in each of the three stages."""

    name: ClassVar[str] = "nasbench201"
    version: ClassVar[int] = 1
    sizes: ClassVar[tuple[str, ...]] = ("channels", "cells")

    channels: int = CHANNELS
    cells: int = CELLS

    def __len__(self) -> int:
        return SIZE

    def indices(self, unique: bool = False) -> Iterable[int]:
        return sorted({*classes()}) if unique else range(SIZE)

    def arch(self, index: int, *, classes: int = 10, shape: Iterable[int] = (3, 32, 32)) -> dict[str, Any]:
        return arch(index, channels=self.channels, cells=self.cells, classes=classes, shape=shape)

    find = staticmethod(find)
    neighbours = staticmethod(neighbours)

    def describe(self, arch: Mapping[str, Any], classes: int, shape: Iterable[int]) -> dict[str, Any]:
        index = index_by_ops()[ops_of(arch)]
        channels, cells = arch.get("channels", CHANNELS), arch.get("cells", CELLS)
        check_counts(channels=channels, cells=cells)
        described = _describe(index, channels, cells, classes, tuple(shape))
        # An architecture with another name keeps that name.
        return {**arch, **described, "name": arch.get("name", described["name"])}
