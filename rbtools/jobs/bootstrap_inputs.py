"""Per-image outcomes from the store, for the bootstrap over images in rankings of records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from rbtools.errors import RbError
from rbtools.evaluation.base import Outcomes
from rbtools.lazy import np
from rbtools.probabilistic import sequential
from rbtools.store import Store, index, listing


class ImageOutcomes:
    """The per-image outcomes of records' evaluations in a store.

    checkpoints: those that `shares` will be called for. A store that does not exist has no outcomes.
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
        """The contribution of each image of the split, in its fixed order, to the entry's value.

        entry: of `evals`. None if the store does not have its outcomes, or they do not give its value.
        """
        value = entry.get("value")
        if value is None or not isinstance(entry.get("n"), int):
            return None
        for stored, key in self._keys.get((str(record.get("checkpoint")), str(entry.get("metric"))), []):
            if (stored.get("value"), stored.get("n")) != (value, entry["n"]):
                continue
            shares = _shares(Outcomes(self._store, key), entry)
            if shares is None or shares.counts.sum() != entry["n"]:
                continue
            if abs(shares.gives.sum(dtype=float) / entry["n"] - value) < 1e-6:
                return shares
        return None


class Shares(NamedTuple):
    """Contributions of images to a value, which is sum(gives) / sum(counts): float32 (N,) each.

    For an accuracy `gives` is 1 for each correct image, and all count. For probabilistic robustness it is the
    share of correct noisy copies, or whether there are enough; images correct without noise count.
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
