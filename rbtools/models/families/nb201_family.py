"""NAS-Bench-201 networks. Only convolutions have weights, so none, skip_connect and pooling look the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from rbtools.errors import RbError
from rbtools.models.families.base import Ambiguous, Inferred, State, numbered, weight
from rbtools.spaces import nasbench201 as nb201
from rbtools.spaces.nasbench201 import CONV1, CONV3, EDGES, NONE, POOL, SKIP

MOST_CELLS = 100  # of a stage; published networks have 5. Cells without weights cannot be counted.


def infer(state: State, metadata: Mapping[str, Any]) -> Inferred | None:
    """The network; an architecture string in the metadata decides between cells with the same weights."""
    sizes = skeleton(state)
    if not sizes:
        return None
    cells, channels = sizes["cells"], sizes["channels"]
    ops = _shared_ops(state, [i for i in range(3 * cells + 2) if i not in (cells, 2 * cells + 1)])
    candidates = list(itertools.product(*((op,) if op else (NONE, SKIP, POOL) for op in ops)))
    named = {cell for cell in map(_cell, _texts(metadata)) if cell in candidates}
    if len(named) == 1:
        candidates = list(named)
    classes, in_channels = state["classifier.weight"].shape[0], state["stem.0.weight"].shape[1]
    inferred = [Inferred(_arch(cell, sizes, classes), classes, in_channels) for cell in candidates]
    if len(inferred) > 1:
        raise Ambiguous(
            f"The checkpoint is a NAS-Bench-201 network ({channels} channels, cells {cells},"
            f" {classes} classes), but {_open_edges(ops)}, so {len(inferred)} architectures fit:"
            f" {some_names(inferred)}. Say which one it is with --arch (its name, index or string).",
            inferred,
        )
    return inferred[0]


def _arch(cell: tuple[int, ...], sizes: Mapping[str, int], classes: int) -> dict[str, Any]:
    index = nb201.index_of(nb201.to_string(cell))
    described = nb201.arch(index, channels=sizes["channels"], cells=sizes["cells"], classes=classes)
    return {key: described[key] for key in ("space", "name", "index", "str", "channels", "cells")}


def skeleton(state: State) -> dict[str, int]:
    """The `channels` and `cells` of a NAS-Bench-201 network; empty for any other state."""
    stem, head = weight(state, "stem.0.weight", 4), weight(state, "classifier.weight", 2)
    if stem is None or head is None or "lastact.0.weight" not in state:
        return {}
    reductions = sorted(i for i, _ in numbered(state, r"cells\.(\d+)()\.conv_a\.op\.1\.weight"))
    if len(reductions) != 2 or reductions[1] != 2 * reductions[0] + 1:
        return {}
    if not 1 <= reductions[0] <= MOST_CELLS:
        return {}
    return {"channels": len(stem), "cells": reductions[0]}


def some_names(candidates: list[Inferred]) -> str:
    """The first of them, for a message."""
    shown = [str(one.arch["name"]) for one in candidates[:9]]
    return ", ".join(shown) + (", ..." if len(candidates) > len(shown) else "")


def _shared_ops(state: State, places: list[int]) -> list[int]:
    """For each edge the convolution that every cell has there, or 0 (no weights)."""
    kernels: dict[int, set[int]] = {edge: set() for edge in range(len(EDGES))}
    for place in places:
        for edge in kernels:
            name = f"cells.{place}.layers.{edge}.op.1.weight"
            tensor = weight(state, name, 4)
            kernels[edge].add(tensor.shape[-1] if tensor is not None else -1 if name in state else 0)
    if any(len(sizes) > 1 or not sizes <= {0, 1, 3} for sizes in kernels.values()):
        raise RbError(
            "The checkpoint looks like a NAS-Bench-201 network, but its cells differ from each other."
            " Expected the same operations in every cell: check that the file is whole."
        )
    return [{0: 0, 1: CONV1, 3: CONV3}[sizes.pop()] for sizes in kernels.values()]


def _open_edges(ops: list[int]) -> str:
    names = [f"{source}->{target}" for (source, target), op in zip(EDGES, ops, strict=True) if not op]
    edges, have = (f"edge {names[0]}", "has") if len(names) == 1 else (f"edges {', '.join(names)}", "have")
    return f"its {edges} {have} no weights and may be none, skip_connect or avg_pool_3x3"


def _cell(text: str) -> tuple[int, ...] | None:
    try:
        return nb201.parse(text)
    except RbError:
        return None


def _texts(value: object, depth: int = 4) -> Iterator[str]:
    """The architecture strings anywhere in the metadata."""
    if isinstance(value, str) and value.startswith("|"):
        yield value
    elif depth and isinstance(value, Mapping):
        yield from itertools.chain.from_iterable(_texts(item, depth - 1) for item in value.values())
    elif depth and isinstance(value, (list, tuple)):
        yield from itertools.chain.from_iterable(_texts(item, depth - 1) for item in value)
