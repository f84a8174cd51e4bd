"""Outcomes of single images, found again in the store: for the bootstrap over images in rankings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from rbtools.certification.smooth import Smooth
from rbtools.errors import RbError
from rbtools.evaluation.base import Outcomes, Output
from rbtools.evaluation.certified import SmoothingOutput
from rbtools.evaluation.distances import DistanceOutput
from rbtools.evaluation.probabilistic import NoisyCopiesOutput, SequentialOutput
from rbtools.evaluation.tasks import CleanOutput
from rbtools.jobs import evaluate_record
from rbtools.lazy import np
from rbtools.plain_files import read_plain
from rbtools.probabilistic.estimate import Estimator
from rbtools.records import answers, expr, metric_name, results
from rbtools.store import Store, listing
from rbtools.store.checksum import described

Entry = dict[str, Any]


def _stored_result(store: Store, key: str) -> dict[str, Any] | None:
    """A stored evaluation with the fields of its keys; None if it is another result, or is gone."""
    path = store.path("results", key)
    with contextlib.suppress(OSError, KeyError, TypeError, AttributeError):
        kept = described(read_plain(path, follow=False), key) if path is not None else None
        if kept is not None and kept["about"].get("kind") == "evaluation" and "of" in kept["about"]:
            return kept
    return None


class ImageOutcomes:
    """What records' models did on each image: by the bits of the entries, else by the outcomes in a store.

    checkpoints: those that it will be asked for; None for any. A store that does not exist has no outcomes.
    """

    def __init__(self, store: Store, checkpoints: Iterable[str] | None = None) -> None:
        self._store = store
        self._checkpoints = None if checkpoints is None else frozenset(checkpoints)

    @cached_property
    def _results(self) -> dict[tuple[str, str], list[tuple[dict[str, Any], str]]]:
        """Entries and the keys of their results in the store, by checkpoint and metric."""
        found: dict[tuple[str, str], list[tuple[dict[str, Any], str]]] = {}
        with contextlib.suppress(RbError):  # there is no store
            for _, record in listing.records(self._store) if self._checkpoints != frozenset() else ():
                if record is None or "outcomes" not in record["stored"]:
                    continue
                checkpoint = record.get("checkpoint")
                wanted = self._checkpoints is None or checkpoint in self._checkpoints
                for entry in record.get("evals", []) if wanted else ():
                    entries = found.setdefault((str(checkpoint), entry["metric"]), [])
                    entries.append((entry, record["stored"]["key"]))
        return found

    def shares(self, record: Mapping[str, Any], entry: Mapping[str, Any]) -> Shares | None:
        """The contribution of each image of the split, in its fixed order, to the entry's value.

        entry: of `evals`. None if neither the entry nor the store has its outcomes, or they do not give its
        value. Raises RbError if its own are damaged.
        """
        own = _own_shares(record, entry)
        if own is not None:
            return own
        for stored in self._stored(record, entry):
            shares = stored.shares(entry)
            if shares is None or shares.counts.sum() != entry["n"]:
                continue
            if abs(shares.gives.sum(dtype=float) / entry["n"] - entry["value"]) < 1e-6:
                return shares
        return None

    def with_answers(self, record: Mapping[str, Any], entry: Entry) -> Entry:
        """The entry with the bits of its images, as `--per-image` writes them; as it is if it has them, and
        if the store does not have its outcomes."""
        if answers.FIELD not in entry and metric_name.is_share(str(entry.get("metric"))):
            for stored in self._stored(record, entry):
                added = evaluate_record.with_answers(entry, stored.output, stored.rows, stored.fields)
                if answers.FIELD in added:
                    return added
        return entry

    def completed(self, record: dict[str, Any], metrics: Sequence[str]) -> dict[str, Any]:
        """The record with the bits of these metrics (globs among them), as far as the store has them."""
        names = {name for item in metrics for name in expr.expand(item, record.get("metrics") or {})}
        entries = [
            self.with_answers(record, entry) if entry.get("metric") in names else entry
            for entry in record.get("evals") or ()
        ]
        return {**record, "evals": entries} if names else record

    def rows(self, record: Mapping[str, Any], entry: Mapping[str, Any]) -> np.ndarray | None:
        """The label and the logits of each image, float32 (N, 1 + K), that `--detail` kept of an entry."""
        rows = (stored.rows for stored in self._stored(record, entry) if stored.output.detail)
        return next(rows, None)

    def _stored(self, record: Mapping[str, Any], entry: Mapping[str, Any]) -> Iterator[_StoredOutcomes]:
        """The results of the store that have the value of the entry, measured in the same way."""
        if entry.get("value") is None or not isinstance(entry.get("n"), int):
            return
        for stored, key in self._results.get((str(record.get("checkpoint")), str(entry.get("metric"))), ()):
            compared = {"value", "defend", "backward", *results.protocol(stored)} - {"metric"}
            if any(stored.get(name) != entry.get(name) for name in compared):
                continue
            kept = _stored_result(self._store, key)
            with contextlib.suppress(KeyError, TypeError, ValueError, IndexError, RbError):
                if kept is not None:
                    fields, n = kept["about"]["of"], kept["what"]["n"]
                    rows = Outcomes(self._store, kept["what"]["outcomes"]).values(n)
                    if len(rows) == n:
                        yield _StoredOutcomes(fields, _output_of(fields["column"], entry), rows)


class Shares(NamedTuple):
    """Contributions of images to a value, which is sum(gives) / sum(counts): float32 (N,) each.

    For an accuracy `gives` is 1 for each correct image, and all count. For probabilistic robustness it is the
    share of correct noisy copies, or whether there are enough; images correct without noise count.
    """

    gives: np.ndarray
    counts: np.ndarray


class _StoredOutcomes(NamedTuple):
    """The outcomes (N,) or rows (N, R) of a stored result, the fields of their key, and an output that reads
    them."""

    fields: dict[str, Any]
    output: Output
    rows: np.ndarray

    def shares(self, entry: Mapping[str, Any]) -> Shares | None:
        gives = self.output.counted(self.rows, entry)
        counts = np.ones(len(self.rows), bool)
        if isinstance(self.output, NoisyCopiesOutput):
            copies = self.rows if self.rows.ndim == 1 else self.rows[:, 0]
            counts = copies >= 0
            if gives is None:
                gives = np.where(counts, copies / self.output.samples, 0)
        return None if gives is None else Shares(gives.astype(np.float32), counts.astype(np.float32))


def _own_shares(record: Mapping[str, Any], entry: Mapping[str, Any]) -> Shares | None:
    """The shares by the bits of the entry. Where only correct images count, the clean accuracy has to say
    which these are."""
    own = answers.of(entry)
    if own is None:
        return None
    counts = np.ones(len(own.right), bool)
    if entry["n"] != len(own.right):
        clean = answers.of(results.last_entry(record, metric_name.split_name("acc", str(entry.get("split")))))
        if clean is None or clean.examples != own.examples:
            return None
        counts = clean.right[: len(own.right)]
        if len(counts) != len(own.right) or counts.sum() != entry["n"]:
            return None
    return Shares(own.right.astype(np.float32), counts.astype(np.float32))


def _output_of(column: Mapping[str, Any], entry: Mapping[str, Any]) -> Output:
    """An output that reads stored outcomes as the one that measured them.

    column: its `key_fields`. Raises KeyError for outcomes that are no shares of images.
    """
    kind, rho = column["kind"], tuple(column.get("rho", ()))
    noise: Any = None  # which it was does not matter for the count
    above = str(entry.get("criterion")).startswith("PR > ")
    read = Estimator(rho=rho, passes="above" if above else "at-least")
    if kind == "pr":
        return NoisyCopiesOutput(noise, column["gamma"], column["samples"], read)
    if kind == "pr-decided":
        return SequentialOutput(noise, column["gamma"], column["samples"], read, adaptive=False)
    if kind == "distance":
        return DistanceOutput(None, ())
    if kind == "certificate":
        numbers = {name: column[name] for name in ("sigma", "samples", "select")}
        smooth = Smooth(**numbers, alpha=entry["alpha"], adaptive="stopping" in column)
        return SmoothingOutput(smooth, tuple(column.get("radii", ())))
    if kind in _ACCURACIES:
        return CleanOutput(detail="rows" in column)
    raise KeyError(kind)


# kinds of outcomes that are 1 for a correct image, or its label and logits
_ACCURACIES = ("clean", "attack", "corruption", "archived corruption")
