"""Scan nested containers, each one once, however often a file refers to it.

A pickle of a few hundred bytes can have lists that contain the same list a thousand times, five levels deep,
and containers that contain themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rbtools.unpickle import UnusualTensor

DEPTH = 4  # levels that are scanned
MOST = 1_000_000  # characters and numbers of one value; the log of a long training has fewer


class PickleScan:
    """Queries on the containers of one file, which must not change during its lifetime."""

    def __init__(self) -> None:
        self._holds: dict[tuple[int, int], bool] = {}
        self._sizes: dict[tuple[int, int], float] = {}

    def holds_tensors(self, value: Any, depth: int = DEPTH) -> bool:
        """Whether a mapping has tensors, itself or in a mapping inside it."""
        if not isinstance(value, Mapping):
            return False
        key = (id(value), depth)
        if key not in self._holds:
            items = value.values()
            self._holds[key] = any(isinstance(item, (Tensor, UnusualTensor)) for item in items) or (
                depth > 0 and any(self.holds_tensors(item, depth - 1) for item in items)
            )
        return self._holds[key]

    def is_plain(self, value: Any) -> bool:
        """Whether a value can be written as JSON (options of a training script, no optimiser state)."""
        return self._size(value, DEPTH) <= MOST

    def _size(self, value: Any, depth: int) -> float:
        """The number of characters and numbers when written; infinite for types that JSON does not have."""
        if isinstance(value, str):
            return 1 + len(value)
        if isinstance(value, (int, float)) or value is None:
            whole = isinstance(value, int) and abs(value) < 2**63
            return (
                1
                if value is None or whole or (isinstance(value, float) and math.isfinite(value))
                else math.inf
            )
        if not depth or not isinstance(value, (Mapping, list, tuple)):
            return math.inf
        key = (id(value), depth)
        if key not in self._sizes:
            parts = [value] if not isinstance(value, Mapping) else [list(value), list(value.values())]
            self._sizes[key] = 1 + sum(self._size(item, depth - 1) for part in parts for item in part)
            if isinstance(value, Mapping) and not all(isinstance(name, str) for name in value):
                self._sizes[key] = math.inf
        return self._sizes[key]
