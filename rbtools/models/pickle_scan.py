"""What stands in nested containers, looked at once each, however often a file refers to them.

A pickle of a few hundred bytes can hold lists that hold the same list a thousand times, five levels deep, and
containers that hold themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rbtools.unpickle import UnusualTensor

DEPTH = 4  # levels that are looked into
MOST = 1_000_000  # letters and numbers of one note: a log of a long training has fewer


class PickleScan:
    """Answers about the containers of one file, which must not change meanwhile."""

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
        """Whether a value could stand in JSON: what a training script noted, and no optimiser state."""
        return self._size(value, DEPTH) <= MOST

    def _size(self, value: Any, depth: int) -> float:
        """Numbers and letters, as often as they would be written; infinite for what JSON does not have."""
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
