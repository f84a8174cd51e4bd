"""One whole number per example, growing as examples are done, kept in the store."""

from __future__ import annotations

import io
import time

import numpy as np

from rbtools.store import Store

_SECONDS_BETWEEN_WRITES = 2.0


class Outcomes:
    """The outcomes of one column for a prefix of the examples' fixed order.

    Every write holds all that is known, so an interrupted run loses at most the last seconds.
    """

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key = store, key
        kept = store.outcomes(key)
        self._values = np.empty(0, np.int32) if kept is None else _decoded(kept)
        self._kept = len(self._values)
        self._written = time.monotonic()

    def __len__(self) -> int:
        return len(self._values)

    def extend(self, values: np.ndarray) -> None:
        """Append the outcomes of the next examples in the order."""
        self._values = np.concatenate([self._values, values.astype(np.int32)])
        if time.monotonic() - self._written > _SECONDS_BETWEEN_WRITES:
            self.keep()

    def keep(self) -> None:
        """Write what is new."""
        if len(self._values) > self._kept:
            buffer = io.BytesIO()
            np.save(buffer, self._values, allow_pickle=False)
            self._store.keep_outcomes(self._key, buffer.getvalue())
            self._kept, self._written = len(self._values), time.monotonic()

    def values(self, n: int) -> np.ndarray:
        """The outcomes of the first n examples."""
        return self._values[:n]


def _decoded(data: bytes) -> np.ndarray:
    try:
        values = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, OSError, EOFError):
        return np.empty(0, np.int32)  # damaged: computed again
    return values if values.dtype == np.int32 and values.ndim == 1 else np.empty(0, np.int32)
