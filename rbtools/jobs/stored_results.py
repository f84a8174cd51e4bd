"""The results of an `Evaluation` of a record, which are read from the store or computed.

The rows of each `Spec` are stored in one fixed order of the examples, under a key that does not contain `n`.
Therefore, a run with more examples, with another eps or after an interruption continues from the stored rows.
(The key contains `n` only for attacks that sample random numbers for complete batches.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools.datasets.indices import ORDER
from rbtools.errors import RbError
from rbtools.evaluation.base import VERSION, Outcomes
from rbtools.evaluation.evaluate import together
from rbtools.evaluation.spec import Evaluation, Spec, by_column
from rbtools.evaluation.tiles import missing_tiles
from rbtools.execution import precision, resources
from rbtools.execution.dry_run import USUAL_SHARE
from rbtools.execution.run import Run
from rbtools.inputs import queried, resolve
from rbtools.inputs.data import Data, named_data
from rbtools.inputs.resolve import Inputs
from rbtools.jobs import randomness, tile_calls
from rbtools.jobs.save_images import ImageFiles, files_to_save, saving
from rbtools.records import answers, dumps, metric_name, results
from rbtools.rng import seed_fields
from rbtools.store import digest

if TYPE_CHECKING:
    import numpy as np


Entry = dict[str, Any]
Entries = list[Entry]

POSTPROCESSING = 2  # version of the computation of entries from outcomes
LARGE_DETAIL = 16384  # bytes of JSON; larger details of an evaluation stay in the store
NO_FAST_MODEL = "The search ran on the original network in float32, because no faster copy could be prepared."


class Results(NamedTuple):
    """The requested entries of an evaluation, and further entries (`along`) that were measured with them.
    `rows(spec)` returns the stored rows of a spec, and `rows(spec, again=True)` computes rows that the store
    has lost."""

    entries: Entries
    along: Entries
    rows: Callable[..., np.ndarray]


def expected_entries(inputs: Inputs, evaluation: Evaluation) -> Entries:
    """The entries of the evaluation as known before the work (`Spec.expected`). If the attack may run on the
    fast model, its precision is known only after the computation."""
    entries = []
    for unit in (_Unit(inputs, (spec,)) for spec in evaluation.specs):
        used = "fp32" if unit.arithmetic["precision"] == "fp32" else results.LATER
        entries.append({**unit.spec.expected(inputs.n, unit.common), "precision": used})
    return [_labelled(entry, inputs) for entry in entries + evaluation.summarize(entries, [])]


def task_entries(inputs: Inputs, evaluation: Evaluation) -> Results:
    """The entries of an evaluation on the split, which are read from the store or computed."""
    run = inputs.run
    units = [_Unit(inputs, specs) for specs in by_column(evaluation.every)]
    save = None
    if evaluation.save is not None:
        names = {unit.spec: unit.entries_key for unit in units if unit.spec in evaluation.specs}
        save = files_to_save(evaluation.save, names, inputs.record["arch"], evaluation.png)
    known: dict[str, Outcomes] = {}
    computed = [None if save else unit.stored() for unit in units]
    if None not in computed:
        run.store.found += 1
    else:
        known = _compute(inputs, evaluation.title, units, computed, save)
        run.store.computed += 1
    found: dict[Spec, Entry] = {}
    for unit, entries in zip(units, computed, strict=True):
        found |= {spec: unit.shown(entry) for spec, entry in zip(unit.specs, entries or (), strict=True)}
    keys = {spec: unit.outcomes_key for unit in units for spec in unit.specs}

    def rows(spec: Spec, again: bool = False) -> np.ndarray:
        if keys[spec] not in known:
            known[keys[spec]] = Outcomes(run.store, keys[spec])
        if again and len(known[keys[spec]]) < inputs.n:
            known.update(_compute(inputs, evaluation.title, units, [None] * len(units), None))
        return known[keys[spec]].values(inputs.n)

    requested, along = ([found[spec] for spec in part] for part in (evaluation.specs, evaluation.along))
    requested += evaluation.summarize(requested, along, rows)
    entries, along = ([_labelled(entry, inputs) for entry in part] for part in (requested, along))
    return Results(entries, along, rows)


def stored_entries(run: Run, fields: Entry, count: int | None = None) -> Entries | None:
    """The entries whose key in the store has these fields. Returns None if there are none, or if the stored
    value is not a list of (`count`) entries, because the store may contain anything."""
    kept = run.store.result(digest(fields))
    if not isinstance(kept, list) or count not in (None, len(kept)):
        return None
    whole = [isinstance(one, dict) and isinstance(one.get("metric"), str) and "value" in one for one in kept]
    return kept if all(whole) else None


def keep_entries(inputs: Inputs, fields: Entry, entries: Entries, of: Entry | None = None) -> None:
    """Store entries under a key with these fields. rb-store shows the fields in `of` (default: `fields`)."""
    about = {"kind": "evaluation", "of": of or fields, **resolve.names(inputs.record, inputs.data)}
    inputs.run.store.keep_result(digest(fields), fields, entries, about)


def stored_value(inputs: Inputs, spec: Spec) -> float | None:
    """The value of a spec, or None if the store does not contain it."""
    entries = _Unit(inputs, (spec,)).stored()
    return None if entries is None else entries[0]["value"]


def renamed(entries: Sequence[Entry], run: Run) -> Sequence[Entry]:
    """The entries, or a single entry with the name of `--as`. Raises RbError if there are several."""
    if run.name_as is None:
        return entries
    if len(entries) != 1:
        more = f" and {len(entries) - 4} others" if len(entries) > 4 else ""
        names = ", ".join(entry["metric"] for entry in entries[:4]) + more
        raise RbError(
            f"--as names one result, but this run has {len(entries)}: {names}. Measure only one of them."
        )
    return [{**entries[0], "metric": run.name_as}]


def outcome_fields(inputs: Inputs, spec: Spec) -> dict[str, Any]:
    """The fields whose digest is the key of a spec's rows in the store."""
    return _Unit(inputs, (spec,)).outcomes_fields


def inputs_fields(inputs: Inputs) -> dict[str, Any]:
    """The fields of every outcome's key: the model, the data and the version of the outcomes."""
    return {"version": VERSION, **inputs.fields}


def examples_digest(data: Data) -> str:
    """A hash that identifies a list of examples, of which evaluations use the first n."""
    return digest({"data": data.fingerprint, "split": data.split, "order": ORDER, **data.protocol()})[:16]


def image_list(data: Data, n: int) -> Entry:
    """The field of an entry that identifies its images, even if the entry has no answers."""
    return {"image_list": {"digest": examples_digest(data), "images": n}}


def _labelled(entry: Entry, inputs: Inputs) -> Entry:
    """An entry as the record contains it, with the split in its name and the tool that made it."""
    data = inputs.data
    labels = {**inputs.run.labels, **image_list(data, inputs.n)}
    named = {**labels, **entry, "metric": metric_name.split_name(entry["metric"], data.split)}
    if named_data(inputs.record, data.name) != data.name:
        named["dataset"] = data.name
    return named


@dataclass(frozen=True, eq=False)
class _Unit:
    """Specs that use the same rows of the same inputs, with their keys in the store and their entries."""

    inputs: Inputs
    specs: tuple[Any, ...]

    @property
    def spec(self) -> Spec:
        """The spec that is measured for all specs of the unit."""
        return self.specs[0]

    @property
    def checked(self) -> bool:
        """True if the entries contain the results of a check of the model's outputs."""
        return self.spec.is_clean and not self.spec.random

    @property
    def arithmetic(self) -> dict[str, Any]:
        """The numerical settings of the computation that can change an outcome."""
        run = self.inputs.run
        only_answers = queried.answers_of(self.inputs.record, run) is not None
        if only_answers or not (run.settings.prepare and self.spec.searches):
            return {"precision": "fp32"}
        named = "fp32" if self.spec.precise else precision.resolve(run)
        return {"precision": named, "prepared": precision.PREPARED}

    @property
    def _seed(self) -> dict[str, Any]:
        return seed_fields(self.inputs.run.settings.seed) if self.spec.random else {}

    @property
    def outcomes_fields(self) -> dict[str, Any]:
        # n determines the size of the last batch, and such an attack draws numbers for whole batches.
        n = {"n": self.inputs.n} if self.spec.batch_dependent else {}
        fields = {**inputs_fields(self.inputs), **self.arithmetic, **self._seed, **n}
        return {"kind": "outcomes", **fields, "column": self.spec.column()}

    @cached_property
    def outcomes_key(self) -> str:
        return digest(self.outcomes_fields)

    @property
    def entries_fields(self) -> dict[str, Any]:
        made = {"n": self.inputs.n, "version": POSTPROCESSING, **self.spec.reading(self.specs)}
        return {"outcomes": self.outcomes_key, **made}

    @cached_property
    def entries_key(self) -> str:
        return digest(self.entries_fields)

    def stored(self) -> Entries | None:
        return stored_entries(self.inputs.run, self.entries_fields, len(self.specs))

    def shown(self, entry: Entry) -> Entry:
        """The entry with large details (a quarter of a megabyte for 100 classes, which would fill the pipe)
        replaced by the key of the stored result. Without a store, the details stay in the entry."""
        small = "detail" not in entry or len(dumps(entry["detail"])) <= LARGE_DETAIL
        small = small or self.inputs.run.store.folder is None
        return entry if small else {**entry, "detail": {"stored": self.entries_key}}

    @property
    def common(self) -> Entry:
        """The fields that describe the examples, the stages before the network, and the random numbers."""
        stages, data = self.inputs.run.selection.defend, self.inputs.data
        entry: Entry = {"split": data.split, **data.protocol()}
        if stages is not None:
            entry["defend"] = stages.text
            by_gradient = getattr(getattr(self.spec, "method", None), "uses_gradients", False)
            if by_gradient and not metric_name.of_other_network(self.spec.name()):
                entry["backward"] = stages.backwards
        if (twin := resolve.twin_of(self.inputs.record)) is not None:
            entry["gradients_from"] = twin["checkpoint"]
        return entry | self.spec.settings_for(data.about.shape) | self._seed

    @property
    def versions(self) -> dict[str, Any]:
        """The versions in the keys of rows and entries: results with other versions may differ."""
        method = {name: at for name, at in self.spec.column().items() if name.endswith("version")}
        own = {"outcomes": VERSION, "order": ORDER, "entries": POSTPROCESSING}
        return {**own, **method, **{key: at for key, at in self.arithmetic.items() if key == "prepared"}}

    def claim(self) -> Entry:
        """The claim of a file of saved images, without the value and the number of images."""
        entry = {"metric": self.spec.name(), **self.spec.settings(), **self.common}
        (named,) = renamed([_labelled(entry, self.inputs)], self.inputs.run)
        return {**named, "checkpoint": self.inputs.checkpoint, "data": self.inputs.data.fingerprint}

    def keep(self, outcomes: Outcomes, checks: dict[str, Any] | None) -> Entries:
        """Compute the entries from the outcomes, store the entries, and return them."""
        totals, rows = outcomes.totals, outcomes.values(self.inputs.n)
        about: Entry = {**self.common, "seconds": round(totals.get("seconds", 0.0), 3)}
        if "forward" in totals:
            passes = {name: round(totals[name] / len(outcomes), 2) for name in ("forward", "backward")}
            about["passes"] = passes
        if self.checked and checks is not None:
            about["sanity"] = checks
        about |= {"device": "+".join(outcomes.known.devices), **self.arithmetic}
        if all(outcomes.known.environments):
            about["environment"] = "; ".join(outcomes.known.environments)
        about["versions"] = self.versions
        warnings, steps = [], outcomes.known.fast_steps
        if about.pop("prepared", None) is not None and "bf16" not in steps:
            about["precision"] = "fp32"  # no fast copy, or one in float32
        if steps:
            about["prepared"] = steps
        elif "prepared" in self.arithmetic and not self.spec.precise:
            warnings = [NO_FAST_MODEL]
        entries = []
        for spec in self.specs:
            entry = spec.entry(rows, totals) | about
            if warnings:
                entry["warnings"] = [*entry.get("warnings", ()), *warnings]
            entries.append(entry | self._answers(entry, spec, rows))
        keep_entries(self.inputs, self.entries_fields, entries, of=self.outcomes_fields)
        return entries

    def _answers(self, entry: Entry, spec: Spec, rows: np.ndarray) -> Entry:
        """One bit for each image, if the value is a share of images and there are not too many images."""
        n = entry.get("n")
        if not n or len(rows) > answers.MOST or not metric_name.is_share(entry["metric"]):
            return {}
        counted = spec.counts(rows)
        if counted is None or counted.ndim != 1 or abs(int(counted.sum()) / n - entry["value"]) > 1e-6:
            return {}
        return {answers.FIELD: answers.packed(counted, examples_digest(self.inputs.data))}


def _compute(
    inputs: Inputs, title: str, units: Sequence[_Unit], computed: list[Any], save: ImageFiles | None
) -> dict[str, Outcomes]:
    """Compute the entries that are None in `computed`, and store outcomes and entries. Returns the outcomes
    by their keys. With `save`, all outcomes are computed again, because the perturbed images are needed.
    Raises Pending in a dry run."""
    run = inputs.run
    missing = [unit for unit, entries in zip(units, computed, strict=True) if entries is None]
    if any(unit.spec.needs for unit in missing):
        missing = list(units)
    outcomes = [Outcomes(run.store, unit.outcomes_key, anew=bool(save)) for unit in missing]
    if run.plan is not None:
        size = together([unit.spec for unit in missing], resources.kind(run), inputs.data.about.shape)
        keys = digest({"tiles of": [unit.entries_key for unit in missing]})
        tiles = missing_tiles(outcomes, inputs.n, size)
        images = sum(len(tile.examples) for tile in tiles)
        only_answers = queried.answers_of(inputs.record, run) is not None
        if only_answers:
            most_queries = images * sum(unit.spec.most_passes for unit in missing)
            run.report.notify(f"{title}: at most {most_queries:,} queries.")
        if only_answers or run.plan.job in run.plan.waiting:  # it is not asked, or not trained yet
            run.plan.lacks(keys, title, len(tiles))
        each = tile_calls.seconds_per_pass(inputs) * images / max(run.placement.jobs, 1)
        most = [(unit.spec.most_passes, unit.spec.under_attack) for unit in missing]
        usual = sum(passes * (USUAL_SHARE if attacked else 1) for passes, attacked in most)
        seconds = each * usual, each * sum(passes for passes, _ in most)
        run.plan.lacks(keys, title, len(tiles), seconds=seconds)
    checks, checked = None, any(unit.checked for unit in missing)
    complete = all(len(stored) >= inputs.n for stored in outcomes)
    # If an earlier run with more images left the outcomes, the file may be missing by now.
    with contextlib.suppress(RbError) if complete else contextlib.nullcontext():
        checkable = "checkpoint_file" in inputs.record or queried.only_answers(inputs.record)
        if not complete or (checked and checkable):
            resolve.checkpoint_of(inputs.record, run)  # a missing file is reported before torch is imported
            specs, to_files = [unit.spec for unit in missing], None
            evaluation = tile_calls.RecordEvaluation(inputs, title, specs, randomness.found(inputs))
            if save is not None:
                claims = {unit.spec: unit.claim() for unit in missing if unit.spec in save.names}
                shape = (inputs.n, *inputs.data.about.shape)
                to_files = partial(saving, save, inputs.data.load().labels, shape, claims)
            checks = tile_calls.measure(evaluation, outcomes, checked=checked, saving=to_files)
            if save is not None:
                run.report.notify(save.written())
    for unit, stored in zip(missing, outcomes, strict=True):
        computed[units.index(unit)] = unit.keep(stored, checks)
    return {unit.outcomes_key: stored for unit, stored in zip(missing, outcomes, strict=True)}
