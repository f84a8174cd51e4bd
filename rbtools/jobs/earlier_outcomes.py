"""Outcomes of earlier evaluations, found again in the store.

`ScreenSources`: a model's attacks that serve as the screen of a two-phase evaluation. An image that any of
them broke, in the same norm within the same distance, is broken: the screen's attacks need not run on it.
Outcomes come from the entries of the record, and from everything that the store has of the same checkpoint,
split and data. `ImageOutcomes`: outcomes of single images, for the bootstrap over images in rankings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools import registry
from rbtools.attacks import ATTACKS, lattice
from rbtools.attacks.curve import CurveAttack
from rbtools.certification.smooth import Smooth
from rbtools.errors import RbError
from rbtools.evaluation.base import Outcomes, Output
from rbtools.evaluation.certified import SmoothingOutput
from rbtools.evaluation.distances import DistanceOutput
from rbtools.evaluation.probabilistic import NoisyCopiesOutput, SequentialOutput
from rbtools.evaluation.tasks import AttackOutput, CleanOutput, right
from rbtools.jobs import evaluate_record
from rbtools.lazy import np
from rbtools.plain_files import read_plain
from rbtools.probabilistic.estimate import Estimator
from rbtools.records import answers, expr, metric_name, results
from rbtools.store import Store, digest, listing
from rbtools.store.checksum import described, stamp_of

if TYPE_CHECKING:
    from rbtools.attacks.base import Attack
    from rbtools.inputs.resolve import Inputs

Entry = dict[str, Any]
_CROSSING = 2.0  # the least sum of step lengths, in eps, of an attack that may replace one of the screen


class StoredEvaluation(NamedTuple):
    """A metric, and the fields that determine its outcomes, whose digest is their key."""

    metric: str
    what: dict[str, Any]

    @property
    def key(self) -> str:
        """The key of the outcomes."""
        return digest(self.what)


class ScreenSource(NamedTuple):
    """An attack and its outcomes for n images.

    broken: bool (n,); margins: (n,), of the logits under the attack, or None if these are not stored. key: of
    the outcomes.
    """

    metric: str
    key: str
    method: Attack
    seed: int | None
    broken: np.ndarray
    margins: np.ndarray | None

    def serves_for(self, attack: Attack) -> bool:
        """Whether it is at least as strong as an attack of the screen at the same eps: of the same loss, with
        as many steps, which are long enough to cross the ball, and any iterate counts."""
        method = self.method
        if method.loss != attack.loss or method.eps != attack.eps or method.iterate != "any":
            return False
        long_enough = getattr(method, "reach", np.inf) >= _CROSSING * method.eps
        return bool(getattr(method, "steps", 0) >= getattr(attack, "steps", 0) and long_enough)

    def described(self) -> Entry:
        """Its description in an entry."""
        seed = {} if self.seed is None else {"seed": self.seed}
        about = {"metric": self.metric, "attack": self.method.name, **registry.config(self.method), **seed}
        return {**about, "broken": int(self.broken.sum()), "outcomes": self.key}


class ScreenSources:
    """The outcomes that record and store have for the model and its images, looked up once for all
    distances."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs

    @cached_property
    def _known(self) -> list[StoredEvaluation]:
        inputs = self._inputs
        store = inputs.run.store
        if store.force or store.folder is None or not inputs.record.get("checkpoint"):
            return []
        by_key = {evaluation.key: evaluation for evaluation in [*_of_record(inputs), *_of_store(inputs)]}
        return [by_key[key] for key in sorted(by_key)]

    def of(self, method: Attack, screen: Sequence[Attack], only: Sequence[str] | None) -> list[ScreenSource]:
        """The outcomes that are valid at the distance of an attack, the largest distance first. Outcomes are
        left out if they break no further image and replace no attack of the screen. The attack's own outcomes
        are left out. `only`: the keys of those to take.
        """
        evaluations = [evaluation for evaluation in self._known if only is None or evaluation.key in only]
        sources = [_source(self._inputs, evaluation, method) for evaluation in evaluations]
        every = [source for source in sources if source is not None]
        if not every:
            return []
        every.sort(key=lambda source: (-source.method.eps, source.metric, source.key))
        chosen: list[ScreenSource] = []
        broken = np.zeros(self._inputs.n, bool)
        for source in every:
            if (source.broken & ~broken).any() or any(source.serves_for(attack) for attack in screen):
                chosen.append(source)
                broken |= source.broken
        return chosen


def _source(inputs: Inputs, evaluation: StoredEvaluation, attack: Attack) -> ScreenSource | None:
    """The outcomes as a screen of the attack; None if they are of no use for it."""
    column, seed = evaluation.what["column"], evaluation.what.get("seed")
    try:
        stored = _attack_of(column["attack"], column["config"])
    except (RbError, TypeError, ValueError, KeyError):
        return None
    of_distances = column["kind"] == "distance"
    if stored.version != column["version"] or stored.norm != attack.norm:
        return None
    if not of_distances and (
        stored.eps > attack.eps or (stored == attack and seed in (None, inputs.run.settings.seed))
    ):
        return None
    outcomes = Outcomes(inputs.run.store, evaluation.key)
    if len(outcomes) < inputs.n:
        return None
    values, margins = outcomes.values(inputs.n), None
    if of_distances:
        stored = dataclasses.replace(stored, eps=attack.eps)
        broken = values[:, 0].astype(np.float64) <= attack.eps
    else:
        detail = values.ndim == 2
        broken = right(values, detail) != 1
        margins = _margins(values) if detail and hasattr(stored, "reach") else None
    return ScreenSource(evaluation.metric, evaluation.key, stored, seed, broken, margins)


def _attack_of(name: str, config: Mapping[str, Any]) -> Any:
    """The attack of stored outcomes. Raises RbError, TypeError or ValueError if there is none such."""
    return CurveAttack(**config) if name == CurveAttack.name else ATTACKS.build(name, **config)


def _margins(rows: np.ndarray) -> np.ndarray:
    """The label's logit minus the largest other one (n,), at least 0, of rows (n, 1 + K): label, logits."""
    labels, logits = rows[:, :1].astype(np.int64), rows[:, 1:].copy()
    label_logits: np.ndarray = np.take_along_axis(logits, labels, 1)[:, 0]
    np.put_along_axis(logits, labels, -np.inf, 1)
    margins: np.ndarray = np.maximum(label_logits - logits.max(1), 0)
    return margins


def _of_record(inputs: Inputs) -> Iterator[StoredEvaluation]:
    """The outcomes behind the entries of the record, if their keys follow from this run's settings."""
    for entry in inputs.record.get("evals") or ():
        method = _method_of(entry)
        if method is None:
            continue
        seed, ladder = entry.get("seed"), entry.get("ladder", ())
        if not isinstance(ladder, (list, tuple)):
            continue
        of_seed = inputs.on(inputs.data.split, seed=seed) if isinstance(seed, int) else inputs
        for detail in (False, True):
            output = AttackOutput(method, tuple(ladder), detail)
            yield StoredEvaluation(str(entry["metric"]), evaluate_record.outcome_fields(of_seed, output))


def _method_of(entry: Entry) -> Attack | None:
    """The attack of an entry; None for other entries, and for those of a sample or of published numbers."""
    name, eps = entry.get("attack"), entry.get("eps")
    others = {"two_phase", "published"} & entry.keys()
    if not isinstance(name, str) or name not in ATTACKS or not isinstance(eps, float) or others:
        return None
    fields = {field.name for field in dataclasses.fields(ATTACKS.load(name))}
    params = {key: value for key, value in entry.items() if key in fields}
    try:
        if "step_size" in params:  # an entry has the step length that was used, even if it is the default
            method: Attack = ATTACKS.build(name, **{**params, "step_size": None})
            if lattice.searched(method).effective_step_size == params["step_size"]:
                return method
        built: Attack = ATTACKS.build(name, **params)
        return built
    except (RbError, TypeError, ValueError):
        return None


def _of_store(inputs: Inputs) -> Iterator[StoredEvaluation]:
    """The finished evaluations of the store with the checkpoint, images and split of these inputs."""
    store = inputs.run.store
    if store.folder is None or not store.folder.exists():
        return
    wanted = {"defend": None, "backward": None, **evaluate_record.inputs_fields(inputs)}
    for folder, stamp in _folders(store):
        for checkpoint, key, metric in _evaluations_in(str(store.folder), folder, stamp):
            fields = _key_fields(store, key) if checkpoint == inputs.checkpoint else None
            if fields is None or {field: fields.get(field) for field in wanted} != wanted:
                continue
            column = fields.get("column", {})
            if column.get("kind") in ("attack", "distance"):
                yield StoredEvaluation(metric, fields)


def _folders(store: Store) -> list[tuple[str, str]]:
    """The folders of results, and the stamp of each; none of a folder that is no store."""
    with contextlib.suppress(RbError, OSError):
        names = listing.folders(store, "results")
        return [(name, stamp_of(f"{store.folder}/results/{name}").text) for name in names]
    return []


@functools.lru_cache(maxsize=1024)
def _evaluations_in(store: str, folder: str, stamp: str) -> list[tuple[str, str, str]]:
    """The checkpoint, key and last metric of each evaluation in a folder with that stamp.

    It is read once for all records: 100,000 results take seconds.
    """
    results = [record for _, record in listing.records_in(Store(store), folder) if record is not None]
    return [  # the last metric; for a search for distances that is "curve.distance"
        (str(result.get("checkpoint")), str(result["stored"]["key"]), str(result["evals"][-1]["metric"]))
        for result in results
        if result["stored"]["kind"] == "evaluation" and result["evals"]
    ]


def _key_fields(store: Store, key: str) -> dict[str, Any] | None:
    """The fields that determine the outcomes of a stored result; None if it is no evaluation, or is gone."""
    kept = _stored_result(store, key)
    return None if kept is None else kept["about"]["of"]


def _stored_result(store: Store, key: str) -> dict[str, Any] | None:
    """A stored evaluation with the fields of its keys; None if it is another result, or is gone."""
    path = store.path("results", key)
    with contextlib.suppress(OSError, KeyError, TypeError, AttributeError):
        kept = described(read_plain(path, follow=False), key) if path is not None else None
        if kept is not None and kept["about"].get("kind") == "evaluation" and "of" in kept["about"]:
            return kept
    return None


# --- outcomes of single images --------------------------------------------------------------------


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
