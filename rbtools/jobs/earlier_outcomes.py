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
from rbtools.errors import RbError
from rbtools.evaluation.base import Outcomes
from rbtools.evaluation.tasks import AttackOutput, right
from rbtools.jobs import evaluate_record
from rbtools.lazy import np
from rbtools.plain_files import read_plain
from rbtools.probabilistic import sequential
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
    wanted = evaluate_record.inputs_fields(inputs)
    for folder, stamp in _folders(store):
        for checkpoint, key, metric in _evaluations_in(str(store.folder), folder, stamp):
            fields = _key_fields(store, key) if checkpoint == inputs.checkpoint else None
            if fields is None or {field: fields.get(field) for field in wanted} != wanted:
                continue
            if fields.get("column", {}).get("kind") in ("attack", "distance"):
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
    path = store.path("results", key)
    with contextlib.suppress(OSError, KeyError, TypeError, AttributeError):
        kept = described(read_plain(path, follow=False), key) if path is not None else None
        about = {} if kept is None else kept["about"]
        return about["of"] if about.get("kind") == "evaluation" else None
    return None


# --- outcomes of single images --------------------------------------------------------------------


class ImageOutcomes:
    """The per-image outcomes of records' evaluations in a store.

    checkpoints: those that `shares` will be called for. A store that does not exist has no outcomes.
    """

    def __init__(self, store: Store, checkpoints: Iterable[str]) -> None:
        self._store = store
        self._keys: dict[tuple[str, str], list[tuple[dict[str, Any], str]]] = {}
        wanted = set(checkpoints)
        try:
            for _, record in listing.records(store) if wanted else ():
                if record is not None:
                    self._take(record, wanted)
        except RbError:  # there is no store
            return

    def _take(self, record: Mapping[str, Any], wanted: set[str]) -> None:
        outcomes, checkpoint = record["stored"].get("outcomes"), record.get("checkpoint")
        if outcomes is None or checkpoint not in wanted:
            return
        for entry in record.get("evals", []):
            entries = self._keys.setdefault((str(checkpoint), entry["metric"]), [])
            entries.append((entry, outcomes))

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
        return None  # sampling stopped when an image was decided
    counts = copies >= 0
    if "rho" in entry:
        most = sequential.allowed(samples, entry["rho"], str(entry.get("criterion")).startswith("PR > "))
        gives = counts & (samples - copies <= most)
    else:
        gives = np.where(counts, copies / samples, 0)
    return Shares(gives.astype(np.float32), counts.astype(np.float32))
