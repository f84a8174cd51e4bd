"""One whole number per example, growing as examples are done, kept in the store."""

from __future__ import annotations

import io
import time
from typing import Any

import numpy as np
import orjson

from rbtools.store import Store

_SECONDS_BETWEEN_WRITES = 2.0


class Outcomes:
    """The outcomes of one column for a prefix of the examples' fixed order.

    Every write holds all that is known, so an interrupted run loses at most the last seconds. `seconds`
    is what all of it took to compute, over all runs; `devices` says on what.
    """

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key = store, key
        kept = store.outcomes(key)
        head, self._values = ({}, np.empty(0, np.int32)) if kept is None else _decoded(kept)
        self.seconds: float = head.get("seconds", 0.0)
        self.devices: list[str] = head.get("devices", [])
        self._kept = len(self._values)
        self._written = time.monotonic()

    def __len__(self) -> int:
        return len(self._values)

    def extend(self, values: np.ndarray, seconds: float, device: str) -> None:
        """Append the outcomes of the next examples in the order, and what they took."""
        self._values = np.concatenate([self._values, values.astype(np.int32)])
        self.seconds += seconds
        self.devices = sorted({*self.devices, device})
        if time.monotonic() - self._written > _SECONDS_BETWEEN_WRITES:
            self.keep()

    def keep(self) -> None:
        """Write what is new."""
        if len(self._values) > self._kept:
            self._store.keep_outcomes(self._key, encoded(self._values, self.seconds, self.devices))
            self._kept, self._written = len(self._values), time.monotonic()

    def values(self, n: int) -> np.ndarray:
        """The outcomes of the first n examples."""
        return self._values[:n]


def encoded(values: np.ndarray, seconds: float, devices: list[str]) -> bytes:
    """Outcomes as the store has them: a line of JSON, then the array as numpy writes it."""
    buffer = io.BytesIO()
    buffer.write(orjson.dumps({"seconds": round(seconds, 3), "devices": devices}) + b"\n")
    np.save(buffer, values, allow_pickle=False)
    return buffer.getvalue()


def _decoded(data: bytes) -> tuple[dict[str, Any], np.ndarray]:
    """The way back; what is damaged counts as nothing known."""
    try:
        line, _, body = data.partition(b"\n")
        head = orjson.loads(line)
        values = np.load(io.BytesIO(body), allow_pickle=False)
        if values.dtype == np.int32 and values.ndim == 1:
            return {"seconds": float(head["seconds"]), "devices": list(map(str, head["devices"]))}, values
    except (ValueError, OSError, EOFError, KeyError, TypeError):
        pass
    return {}, np.empty(0, np.int32)
