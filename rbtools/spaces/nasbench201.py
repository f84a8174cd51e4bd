"""NAS-Bench-201 (Dong & Yang, ICLR 2020): 15,625 cells in a fixed skeleton, as the space of rb-arch.

Published indices, strings, isomorphism classes and costs, all computed, without torch or numpy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, ClassVar

from rbtools.errors import RbError
from rbtools.spaces import nb201_cells
from rbtools.spaces.nb201_cells import (
    EDGES,
    FORM,
    OPS,
    Ops,
    classes,
    edit_distance,
    index_by_ops,
    parse,
    to_string,
    unique,
)
from rbtools.spaces.nb201_counts import (
    check_counts,
    kernel_params,
    live_edges,
    live_kernel_params,
    mac_cost,
    macs,
    param_cost,
    params,
)

__all__ = [
    "CELLS",
    "CHANNELS",
    "EDGES",
    "FORM",
    "OPS",
    "NASBench201",
    "Ops",
    "arch",
    "classes",
    "edit_distance",
    "find",
    "index_of",
    "kernel_params",
    "live_edges",
    "live_kernel_params",
    "macs",
    "neighbours",
    "ops_of",
    "params",
    "parse",
    "strings",
    "to_string",
    "unique",
]

SIZE: int = len(OPS) ** len(EDGES)
CHANNELS, CELLS = 16, 5
_PREFIX = "nb201-"


@cache
def strings() -> tuple[str, ...]:
    """All 15,625 architecture strings in the published order."""
    return tuple(map(to_string, nb201_cells.cells()))


def index_of(text: str) -> int:
    """The published index of an architecture string. Raises RbError if it does not parse."""
    return index_by_ops()[parse(text)]


def find(text: str) -> int:
    """The index for an index, a name such as nb201-13714, or an architecture string.

    Raises RbError for an index out of range or a string that does not parse.
    """
    word = text.strip()
    number = word.removeprefix(_PREFIX)
    try:
        index = int(number)
    except ValueError:
        return index_of(word)
    return _checked(index)


def neighbours(index: int) -> list[int]:
    """The 24 indices whose cells differ in one edge. Raises RbError for an index out of range."""
    return nb201_cells.neighbours(_checked(index))


def distance(record: Mapping[str, Any], other: object) -> int:
    """The number of edges, 0 to 6, in which a record's cell differs from another, given by index, name or
    string.

    It is `distance(13714)` in expressions. Raises RbError for a record of another space.
    """
    arch = record.get("arch")
    if not isinstance(arch, Mapping) or arch.get("space") != NASBench201.name:
        raise RbError("distance() is between cells of NAS-Bench-201, and the record is of another space.")
    cell = ops_of({"index": find(str(other))})
    return sum(one != two for one, two in zip(ops_of(arch), cell, strict=True))


def ops_of(arch: Mapping[str, Any]) -> Ops:
    """The cell of a record's `arch`: by its `str`, else its `index`, else its `name`.

    Raises RbError if it has none of them, or if string and index are not the same cell.
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
            return nb201_cells.cells()[find(str(arch[key]))]
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
    """Describe an architecture as in a record's `arch`.

    Its counts are those of this index, dead convolutions included, not of its class. `shape` is one
    image's (C, H, W). Raises RbError for an index out of range or a network that cannot be built.
    """
    return _describe(_checked(index), channels, cells, classes, tuple(shape))


def _describe(index: int, channels: int, depth: int, outputs: int, shape: tuple[int, ...]) -> dict[str, Any]:
    ops = nb201_cells.cells()[index]
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
        "none": ops.count(nb201_cells.NONE),
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
    """NAS-Bench-201 as a `rbtools.spaces.Space`: `cells` cells in each of three stages."""

    name: ClassVar[str] = "nasbench201"
    version: ClassVar[int] = 1
    sizes: ClassVar[tuple[str, ...]] = ("channels", "cells")

    channels: int = CHANNELS
    cells: int = CELLS

    def __len__(self) -> int:
        return SIZE

    def indices(self, unique: bool = False) -> Iterable[int]:
        return nb201_cells.unique() if unique else range(SIZE)

    def arch(self, index: int, *, classes: int = 10, shape: Iterable[int] = (3, 32, 32)) -> dict[str, Any]:
        return arch(index, channels=self.channels, cells=self.cells, classes=classes, shape=shape)

    def find(self, text: str) -> int:
        return find(text)

    def neighbours(self, index: int) -> list[int]:
        return neighbours(index)

    def describe(self, arch: Mapping[str, Any], classes: int, shape: Iterable[int]) -> dict[str, Any]:
        index = index_by_ops()[ops_of(arch)]
        channels, cells = arch.get("channels", CHANNELS), arch.get("cells", CELLS)
        check_counts(channels=channels, cells=cells)
        described = _describe(index, channels, cells, classes, tuple(shape))
        # An architecture with another name keeps that name.
        return {**arch, **described, "name": arch.get("name", described["name"])}
