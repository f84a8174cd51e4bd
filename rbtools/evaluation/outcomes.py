"""Per-example outcomes in the store: an array that grows as examples are done."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import orjson

from rbtools.datasets import npy
from rbtools.lazy import np
from rbtools.store import Store

VERSION = 2  # of the computation of outcomes
_SECONDS_BETWEEN_WRITES = 2.0


class Part(NamedTuple):
    """Outcomes of one output for some consecutive examples: the arguments of `Outcomes.extend`."""

    values: np.ndarray
    totals: Mapping[str, float]
    device: str
    fast_steps: Sequence[str] = ()
    environment: str = ""

    def encoded(self) -> bytes:
        """The part in the format of stored outcomes."""
        rows = _rows(self.values)
        return encoded(rows, self.totals, [self.device], self.fast_steps, [self.environment])

    @classmethod
    def decoded(cls, data: bytes) -> Part | None:
        """A part that was stored; None for damaged data."""
        values, totals, devices, fast_steps, environments = _decoded(data)
        if values is None or len(devices) != 1 or len(environments) != 1:
            return None
        return cls(values, totals, devices[0], fast_steps, environments[0])


class Outcomes:
    """The outcomes of one output for a prefix of the examples' fixed order.

    A row is a whole number, or some float32 numbers. Every write contains all rows, so that an interrupted
    run loses at most the last seconds. `totals` are sums over the examples and over all runs that computed
    them: seconds, passes and other counts; `devices` are the devices used, `fast_steps` the steps that made
    the fast model, `environments` what `device.environment` said, "" where that is not known. With `anew`
    stored outcomes are ignored.
    """

    def __init__(self, store: Store, key: str, *, anew: bool = False) -> None:
        self._store, self.key = store, key
        stored = None if anew else store.outcomes(key)
        self.totals: dict[str, float] = {}
        self.devices: list[str] = []
        self.fast_steps: list[str] = []
        self.environments: list[str] = []
        self._values: np.ndarray | None = None
        if stored is not None:
            self._values, self.totals, self.devices, self.fast_steps, self.environments = _decoded(stored)
        self._kept = len(self)
        self._written = time.monotonic()

    def __len__(self) -> int:
        return 0 if self._values is None else len(self._values)

    def extend(
        self,
        values: np.ndarray,
        totals: Mapping[str, float],
        device: str,
        fast_steps: Sequence[str] = (),
        environment: str = "",
    ) -> None:
        """Append the outcomes of the next examples in the order, and add their sums, device, steps and
        environment."""
        rows = _rows(values)
        self._values = rows if self._values is None else np.concatenate([self._values, rows])
        for name, value in totals.items():
            self.totals[name] = self.totals.get(name, 0.0) + value
        self.devices = sorted({*self.devices, device})
        self.fast_steps = sorted({*self.fast_steps, *fast_steps})
        self.environments = sorted({*self.environments, environment})
        if time.monotonic() - self._written > _SECONDS_BETWEEN_WRITES:
            self.keep()

    def keep(self) -> None:
        """Write the outcomes to the store if there are new ones."""
        if self._values is not None and len(self) > self._kept:
            data = encoded(self._values, self.totals, self.devices, self.fast_steps, self.environments)
            self._store.keep_outcomes(self.key, data)
            self._kept, self._written = len(self), time.monotonic()

    def values(self, n: int) -> np.ndarray:
        """The outcomes of the first n examples."""
        return np.empty(0, np.int32) if self._values is None else self._values[:n]


def _rows(values: np.ndarray) -> np.ndarray:
    """Rows as they are stored."""
    return values.astype(np.int32 if values.ndim == 1 else np.float32)


def encoded(
    values: np.ndarray,
    totals: Mapping[str, float],
    devices: Sequence[str],
    fast_steps: Sequence[str] = (),
    environments: Sequence[str] = ("",),
) -> bytes:
    """Outcomes in the store's format: a line of JSON, then the array in numpy's .npy format."""
    buffer = io.BytesIO()
    rounded = {name: round(value, 3) for name, value in totals.items()}
    head = {"totals": rounded, "devices": list(devices), "prepared": list(fast_steps)}
    head["environments"] = list(environments)
    buffer.write(orjson.dumps(head) + b"\n")
    np.save(buffer, values, allow_pickle=False)
    return buffer.getvalue()


def _decoded(data: bytes) -> tuple[np.ndarray | None, dict[str, float], list[str], list[str], list[str]]:
    """Decode stored outcomes; damaged data decode to none."""
    try:
        line, _, body = data.partition(b"\n")
        head = orjson.loads(line)
        header = npy.header(io.BytesIO(body))  # an untrusted file may declare any size
        values: np.ndarray = (
            np.frombuffer(body, header.dtype, offset=header.size).reshape(header.shape).copy()
        )
        totals = {str(name): float(value) for name, value in head["totals"].items()}
        if (str(values.dtype), values.ndim) in (("int32", 1), ("float32", 2)):
            names = (head["devices"], head["prepared"], head.get("environments", [""]))
            devices, fast_steps, environments = (list(map(str, part)) for part in names)
            return values, totals, devices, fast_steps, environments
    except (ValueError, OSError, EOFError, KeyError, TypeError, AttributeError):
        pass
    return None, {}, [], [], []
