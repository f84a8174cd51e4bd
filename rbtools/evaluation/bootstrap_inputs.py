"""What the store knows of single images: what each gave to a model's results, for records that are ranked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import orjson

from rbtools.errors import RbError
from rbtools.evaluation.outcomes import Outcomes
from rbtools.probabilistic import sequential
from rbtools.store import Store, index, listing


class ImageOutcomes:
    """The outcomes of records' evaluations, where a store has them.

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

    def shares(self, record: Mapping[str, Any], entry: Mapping[str, Any]) -> Shares | None:
        """What each image of the split, in its fixed order, gives to the entry's value; see `Shares`.

        entry: of `evals`. None where the store does not have it, or where what it has does not give the
        entry's value.
        """
        value = entry.get("value")
        if value is None or not isinstance(entry.get("n"), int):
            return None
        for kept, key in self._keys.get((str(record.get("checkpoint")), str(entry.get("metric"))), []):
            if (kept.get("value"), kept.get("n")) != (value, entry["n"]):
                continue
            found = _shares(Outcomes(self._store, key), entry)
            if found is None or found.counts.sum() != entry["n"]:
                continue
            if abs(found.gives.sum(dtype=float) / entry["n"] - value) < 1e-6:
                return found
        return None


class Shares(NamedTuple):
    """What images give to a value, which is the sum of `gives` over that of `counts`: float32 (N,) each.

    Of an accuracy, 1 for each that is right, and all count. Of probabilistic robustness, the share of
    noisy copies that are right, or whether enough are, and those count that are right without noise.
    """

    gives: np.ndarray
    counts: np.ndarray


def _shares(outcomes: Outcomes, entry: Mapping[str, Any]) -> Shares | None:
    if "gamma" not in entry:
        rows = outcomes.values(entry["n"])
        right = rows[:, 1:].argmax(1) == rows[:, 0] if rows.ndim == 2 else rows == 1
        return Shares(right.astype(np.float32), np.ones(len(right), np.float32))
    copies, samples = outcomes.values(len(outcomes)), entry.get("samples")
    if copies.ndim != 1 or not isinstance(samples, int):
        return None  # sampling stopped where an image was decided
    counts = copies >= 0
    if "rho" in entry:
        most = sequential.allowed(samples, entry["rho"], str(entry.get("criterion")).startswith("PR > "))
        gives = counts & (samples - copies <= most)
    else:
        gives = np.where(counts, copies / samples, 0)
    return Shares(gives.astype(np.float32), counts.astype(np.float32))
