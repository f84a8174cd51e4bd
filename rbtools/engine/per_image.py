"""What the store knows of single images: which of them a model got right, for records that are ranked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import orjson

from rbtools.engine.outcomes import Outcomes
from rbtools.errors import RbError
from rbtools.store import Store, index, listing


class PerImage:
    """The outcomes of records' accuracies, where a store has them.

    checkpoints: those that anybody will ask for. Nothing is found in a store that is not there.
    """

    def __init__(self, store: Store, checkpoints: Iterable[str]) -> None:
        self._store = store
        self._keys: dict[tuple[str, str], list[tuple[dict[str, Any], str]]] = {}
        wanted = set(checkpoints)
        try:
            folders = listing.folders(store, "results") if wanted else []
        except RbError:
            folders = []
        for folder in folders:
            for line in index.texts(store, folder).lines:
                self._take(orjson.loads(line), wanted)

    def _take(self, record: Mapping[str, Any], wanted: set[str]) -> None:
        outcomes, checkpoint = record["stored"].get("outcomes"), record.get("checkpoint")
        if outcomes is None or checkpoint not in wanted:
            return
        for entry in record.get("evals", []):
            known = self._keys.setdefault((str(checkpoint), entry["metric"]), [])
            known.append((entry, outcomes))

    def right(self, record: Mapping[str, Any], entry: Mapping[str, Any]) -> np.ndarray | None:
        """Whether each of the n images is classified right: bool (n,), in the fixed order of the split.

        entry: of `evals`. None where the store does not have it, or where what it has does not give the
        entry's value, such as counts of noisy copies.
        """
        value, n = entry.get("value"), entry.get("n")
        if value is None or not isinstance(n, int):
            return None
        for kept, key in self._keys.get((str(record.get("checkpoint")), str(entry.get("metric"))), []):
            if (kept.get("value"), kept.get("n")) != (value, n):
                continue
            rows = Outcomes(self._store, key).values(n)
            right: np.ndarray = rows[:, 1:].argmax(1) == rows[:, 0] if rows.ndim == 2 else rows == 1
            if len(right) == n and abs(right.mean() - value) < 1e-9:
                return right
        return None
