"""An `Evaluation` of a record: its results from the store or computed.

Each `Spec` has a row for each example (whether it is still classified correctly; the
number of its correct noisy copies). Rows are stored under a key that does not contain `n`, in one fixed
order of the examples, so that more examples, another eps or an interrupted run continue from the stored
rows. (The key of attacks that draw random numbers for the whole batch does contain `n`.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from rbtools.errors import RbError
from rbtools.evaluation import model_checks
from rbtools.evaluation.accuracy import Attacked, Clean
from rbtools.evaluation.base import VERSION, Outcomes
from rbtools.evaluation.evaluate import together
from rbtools.evaluation.spec import Evaluation, Spec, by_column
from rbtools.evaluation.tiles import missing_tiles
from rbtools.execution import precision, resources
from rbtools.execution.run import Run
from rbtools.inputs import resolve
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.inputs.data import beside, named_data
from rbtools.inputs.resolve import Inputs
from rbtools.jobs import SplitJob, randomness, tile_calls
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
NO_FAST_MODEL = "The search ran on the network as it is, in float32: it could not be prepared for searches."


@dataclass(frozen=True)
class EvaluateJob(SplitJob):
    """Some evaluations of the record's model, one after another."""

    evaluations: tuple[Evaluation, ...]

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        if run.plan is not None and len(self.evaluations) > 1:
            run.plan.each([partial(run_task, record, one, run) for one in self.evaluations])
        for one in self.evaluations:
            record = beside(record, run_task(record, one, run))
        return record


def run_task(record: dict[str, Any], evaluation: Evaluation, run: Run) -> dict[str, Any]:
    """The record with the results of the evaluation.

    Raises RbError where the model or the data are not available, or the record has a result of that name
    with another protocol.
    """
    inputs = resolve_inputs(record, run)
    evaluation = randomness.judged(inputs, evaluation)
    among = inputs.data.about.present
    if among and type(evaluation.specs[0]) is Clean and not evaluation.specs[0].draws:
        evaluation = replace(evaluation, specs=(Clean(among=among), *evaluation.specs))
    check_entries(inputs.record, expected_entries(inputs, evaluation), run)
    record, measured = measured_entries(inputs, evaluation)
    for entry in measured.along:
        record = results.add_implicit(record, entry)
    report_grid(inputs, evaluation)
    return add_entries(record, measured.entries, run)


def report_grid(inputs: Inputs, evaluation: Evaluation) -> None:
    """Print how much accuracy the grid of an attack gives back, where the store has the result without it."""
    for spec in evaluation.specs:
        if type(spec) is not Attacked or spec.draws or spec.method.grid == "none":
            continue
        real = replace(spec, method=replace(spec.method, grid="none"))
        values = [
            entries[0]["value"]
            for one in (spec, real)
            if (entries := _stored_entries(inputs.run, _cache_unit(inputs, (one,))))
        ]
        if len(values) == 2:
            more = values[0] - values[1]
            side = f"{abs(more):.4f} {'below' if more < 0 else 'above'}"
            inputs.run.report.notify(
                f"{spec.name()} on 8-bit images: {values[0]:.4f}, {side} the one on real-valued images."
            )


def measured_entries(inputs: Inputs, evaluation: Evaluation) -> tuple[dict[str, Any], Results]:
    """The record with its data, and the results of the evaluation. Prints their warnings."""
    measured = task_entries(inputs, evaluation)
    every = [*measured.entries, *measured.along]
    model_checks.report_checks(inputs.record, every, inputs.run)
    report_warnings(measured.entries, inputs.run)
    record = randomness.marked(inputs.record_with_data(), inputs)
    return with_classes(record, inputs, every), measured


def with_classes(record: dict[str, Any], inputs: Inputs, entries: Entries) -> dict[str, Any]:
    """The record with the classes of the images that entries have answers for.

    The store caches them, so that a result that it has needs no images.
    """
    if not any(answers.FIELD in entry for entry in entries):
        return record
    examples = examples_digest(inputs.fields, inputs.data.protocol())
    key = f"classes:{examples}:{inputs.n}"
    classes = inputs.run.store.get(key)
    if classes is None:
        labels = inputs.data.load().labels
        classes = dumps(answers.packed_labels(labels[inputs.data.order(labels)[: inputs.n]].numpy())).decode()
        inputs.run.store.put(key, classes)
    return answers.with_labels(record, examples, orjson.loads(classes))


def report_warnings(entries: Sequence[Entry], run: Run) -> None:
    """Print the warnings of the entries."""
    for entry in entries:
        for warning in entry.get("warnings", ()):
            if warning == NO_FAST_MODEL:
                continue  # the refusal of the fast copy already gave the reason
            run.report.notify(f"{entry['metric']}: {warning}")


def add_entries(record: dict[str, Any], entries: Sequence[Entry], run: Run) -> dict[str, Any]:
    """Add entries under their names, or under `--as NAME`. Raises RbError as `check_entries` does."""
    for entry in _renamed(entries, run):
        record = results.add(record, entry, replace=run.replace)
    return record


def check_entries(record: dict[str, Any], entries: Sequence[Entry], run: Run) -> None:
    """Raise RbError before the computation where `add_entries` would raise it afterwards."""
    if (other := results.edited(record)) is not None:
        run.report.notify(
            f"warning: {other['metric']} of a record differs from its entry in evals."
            " Measuring it again replaces it."
        )
    for entry in _renamed(entries, run):
        if not run.replace:
            results.refuse(record, entry)


def _renamed(entries: Sequence[Entry], run: Run) -> Sequence[Entry]:
    if run.name_as is None:
        return entries
    if len(entries) != 1:
        more = f" and {len(entries) - 4} others" if len(entries) > 4 else ""
        names = ", ".join(entry["metric"] for entry in entries[:4]) + more
        raise RbError(
            f"--as names one result, but this run gives {len(entries)}: {names}. Ask for one of them alone."
        )
    return [{**entries[0], "metric": run.name_as}]


def expected_entries(inputs: Inputs, evaluation: Evaluation) -> Entries:
    """The entries of the evaluation as far as they are known before the computation: without results.

    Fields that only the computation determines are results.LATER: the number of correct images, a loss that
    may replace another, whether the attack can run on the fast model.
    """
    nothing = {"value": 0.0, "ci95": (0.0, 1.0), "seconds": 0.0}
    entries = []
    for spec in evaluation.specs:
        precise = _arithmetic(spec, inputs.run)["precision"] == "fp32"
        common = {"precision": "fp32" if precise else results.LATER, **_common(spec, inputs)}
        entry = {"metric": spec.name(), **spec.settings()}
        number = results.LATER if entry.get("denominator") == "correct" else inputs.n
        loss = {"loss": results.LATER} if "loss" in entry else {}
        entries.append({**entry, "n": number, **nothing, **loss, **common})
    entries += evaluation.summarize(entries, [])
    return [_named_entry(entry, inputs) for entry in entries]


def _common(spec: Spec, inputs: Inputs) -> Entry:
    """The fields of a spec's entry that describe its examples and its random numbers."""
    seed = seed_fields(inputs.run.settings.seed) if spec.random else {}
    return {
        "split": inputs.data.split,
        **inputs.data.protocol(),
        **_stages_fields(spec, inputs.run),
        **seed,
    }


def _stages_fields(spec: Spec, run: Run) -> Entry:
    """The fields that name the stages in front of the network and, if the attack went through them, how their
    gradients were taken."""
    stages = run.selection.defend
    if stages is None:
        return {}
    by_gradient = spec.settings().get("attack") not in (None, "square", "noise")
    through = by_gradient and not metric_name.of_other_network(spec.name())
    return {"defend": stages.text, **({"backward": stages.backwards} if through else {})}


class Results(NamedTuple):
    """The entries of an evaluation: those that were asked for, and those measured along. rows: of a spec, as
    far as the store has them; `rows(spec, again=True)` computes those that it has lost."""

    entries: Entries
    along: Entries
    rows: Callable[..., np.ndarray]


def task_entries(inputs: Inputs, evaluation: Evaluation) -> Results:
    """The entries of an evaluation on the split, from the store or computed."""
    run = inputs.run
    units = _cache_units(inputs, evaluation)
    save = None
    if evaluation.save is not None:
        keys = {unit.spec: unit.entries_key for unit in units if unit.spec in evaluation.specs}
        save = files_to_save(evaluation.save, keys, inputs.record["arch"], evaluation.png)
    known: dict[str, Outcomes] = {}
    computed = [None if save else _stored_entries(run, unit) for unit in units]
    if None not in computed:
        run.store.found += 1
    else:
        known = _compute(inputs, evaluation, units, computed, save)
        run.store.computed += 1
    found: dict[Spec, Entry] = {}
    for unit, entries in zip(units, computed, strict=True):
        shown = [_without_large_detail(entry, unit.entries_key, run) for entry in entries or ()]
        found |= zip(unit.specs, shown, strict=True)
    keys = {spec: unit.outcomes_key for unit in units for spec in unit.specs}

    def rows(spec: Spec, again: bool = False) -> np.ndarray:
        if keys[spec] not in known:
            known[keys[spec]] = Outcomes(run.store, keys[spec])
        if again and len(known[keys[spec]]) < inputs.n:
            known.update(_compute(inputs, evaluation, units, [None] * len(units), None))
        return known[keys[spec]].values(inputs.n)

    requested, along = ([found[spec] for spec in part] for part in (evaluation.specs, evaluation.along))
    requested += evaluation.summarize(requested, along, rows)
    entries, along = ([_named_entry(entry, inputs) for entry in part] for part in (requested, along))
    return Results(entries, along, rows)


def outcome_fields(inputs: Inputs, spec: Spec) -> dict[str, Any]:
    """The fields that determine the rows of a spec, whose digest is their key in the store."""
    return _cache_unit(inputs, (spec,)).outcomes_fields


def inputs_fields(inputs: Inputs) -> dict[str, Any]:
    """Those of these fields that name the model, the data and the version of the outcomes."""
    return {"version": VERSION, **inputs.fields}


def _cache_units(inputs: Inputs, evaluation: Evaluation) -> list[_CacheUnit]:
    return [_cache_unit(inputs, specs) for specs in by_column(evaluation.every)]


def _stored_entries(run: Run, unit: _CacheUnit) -> Entries | None:
    """The entries that the store has, or None; a store of other people may contain anything under the key."""
    kept = run.store.result(unit.entries_key)
    is_whole = (
        isinstance(kept, list)
        and len(kept) == len(unit.specs)
        and all(
            isinstance(entry, dict) and isinstance(entry.get("metric"), str) and "value" in entry
            for entry in kept
        )
    )
    return kept if is_whole else None


def _without_large_detail(entry: Entry, key: str, run: Run) -> Entry:
    """The entry with the key of its stored result in place of details that would fill the pipe: those of 100
    classes have a quarter of a megabyte for each metric. Without a store they stay in the entry.
    """
    if run.store.folder is None or "detail" not in entry or len(dumps(entry["detail"])) <= LARGE_DETAIL:
        return entry
    return {**entry, "detail": {"stored": key}}


def examples_digest(fields: Mapping[str, Any], protocol: Mapping[str, Any]) -> str:
    """The name of the list of examples, of which an evaluation takes the first n.

    fields: with `data` and `split`, as `inputs_fields` and stored results have them; protocol: of an entry.
    """
    chosen = {name: protocol[name] for name in ("indices", "class_map") if name in protocol}
    return digest({"data": fields["data"], "split": fields["split"], **chosen})[:16]


def _with_answers(entry: Entry, spec: Spec, outcomes: np.ndarray, fields: Mapping[str, Any]) -> Entry:
    """The entry with a bit for each image, where its value is a share of images and they are not too many.

    outcomes: of all images of the evaluation; fields: see `examples_digest`.
    """
    n = entry.get("n")
    if not n or len(outcomes) > answers.MOST or not metric_name.is_share(entry["metric"]):
        return entry
    counted = spec.counts(outcomes)
    if counted is None or counted.ndim != 1 or abs(int(counted.sum()) / n - entry["value"]) > 1e-6:
        return entry
    return {**entry, answers.FIELD: answers.packed(counted, examples_digest(fields, entry))}


def _named_entry(entry: Entry, inputs: Inputs) -> Entry:
    """An entry as stored in the record: named for its split, with the tool that made it."""
    data = inputs.data
    named = {**inputs.run.labels, **entry, "metric": metric_name.split_name(entry["metric"], data.split)}
    if named_data(inputs.record, data.name) != data.name:
        named["dataset"] = data.name
    return named


class _CacheUnit(NamedTuple):
    """Specs that read the same rows, with the store keys of their rows and entries: the determining fields
    and their digests."""

    specs: tuple[Any, ...]
    outcomes_fields: dict[str, Any]
    outcomes_key: str
    entries_fields: dict[str, Any]
    entries_key: str

    @property
    def spec(self) -> Spec:
        """The one that is measured for all."""
        first: Spec = self.specs[0]
        return first


def _cache_unit(inputs: Inputs, specs: tuple[Any, ...]) -> _CacheUnit:
    spec, run = specs[0], inputs.run
    of_outcomes = {
        "kind": "outcomes",
        **inputs_fields(inputs),
        **_arithmetic(spec, run),
        "column": spec.column(),
    }
    if spec.random:
        of_outcomes |= seed_fields(run.settings.seed)
    if spec.batch_dependent:
        # n sets the size of the last batch, and the attack draws for whole batches.
        of_outcomes["n"] = inputs.n
    outcomes_key = digest(of_outcomes)
    of_entries = {
        "outcomes": outcomes_key,
        "n": inputs.n,
        "version": POSTPROCESSING,
        **spec.reading(specs),
    }
    return _CacheUnit(specs, of_outcomes, outcomes_key, of_entries, digest(of_entries))


def _arithmetic(spec: Spec, run: Run) -> dict[str, Any]:
    """The numerical settings of the spec's computation that could change an outcome."""
    if not (run.settings.prepare and spec.searches):
        return {"precision": "fp32"}
    return {"precision": precision.resolve(run), "prepared": precision.PREPARED}


def _compute(
    inputs: Inputs,
    evaluation: Evaluation,
    units: Sequence[_CacheUnit],
    computed: list[Any],
    save: ImageFiles | None,
) -> dict[str, Outcomes]:
    """Compute the entries that are None in `computed`, and store outcomes and entries. Returns the outcomes
    by their keys.

    With `save` the perturbed images are needed too, and everything is computed again. Raises Pending in a dry
    run.
    """
    n, run = inputs.n, inputs.run
    missing = [i for i, entries in enumerate(computed) if entries is None]
    if any(units[i].spec.needs for i in missing):
        missing = list(range(len(units)))
    specs = [units[i].spec for i in missing]
    outcomes = [Outcomes(run.store, units[i].outcomes_key, anew=bool(save)) for i in missing]
    if run.plan is not None:
        size = together(specs, resources.kind(run), inputs.data.about.shape)
        keys = digest({"tiles of": [units[i].entries_key for i in missing]})
        run.plan.lacks(keys, evaluation.title, len(missing_tiles(outcomes, n, size)))
    checked = any(map(_is_checked, specs))
    checks = None
    if any(len(stored) < n for stored in outcomes):
        checks = _measure(inputs, evaluation.title, specs, outcomes, save, checked)
    elif checked and "checkpoint_file" in inputs.record:
        # An earlier run of more images left the outcomes. The file may be gone since.
        with contextlib.suppress(RbError):
            checks = _measure(inputs, evaluation.title, specs, outcomes, save, checked)
    labels = resolve.names(inputs.record, inputs.data)
    for i, stored in zip(missing, outcomes, strict=True):
        unit = units[i]
        common = _common(unit.spec, inputs)
        cost = {"device": "+".join(stored.known.devices), **_arithmetic(unit.spec, run)}
        if len(stored.known.environments) == 1 and stored.known.environments[0]:
            cost["environment"] = stored.known.environments[0]
        warnings = []
        if stored.known.fast_steps:
            cost["prepared"] = stored.known.fast_steps
        elif cost.pop("prepared", None) is not None:
            cost["precision"] = "fp32"  # there was no fast copy of the model
            warnings = [NO_FAST_MODEL]
        sanity = {"sanity": checks} if checks is not None and _is_checked(unit.spec) else {}
        computed[i] = []
        for spec in unit.specs:
            entry = spec.entry(stored.values(n), stored.totals)
            entry = {**entry, **common, **_cost(stored, len(stored)), **sanity, **cost}
            more = {"warnings": [*entry.get("warnings", ()), *warnings]} if warnings else {}
            entry = _with_answers({**entry, **more}, spec, stored.values(n), unit.outcomes_fields)
            computed[i].append(entry)
        about = {"kind": "evaluation", "of": unit.outcomes_fields, **labels}
        run.store.keep_result(unit.entries_key, unit.entries_fields, computed[i], about)
    return {units[i].outcomes_key: stored for i, stored in zip(missing, outcomes, strict=True)}


def _is_checked(spec: Spec) -> bool:
    """Whether its entry has what a look at the model's outputs found."""
    return isinstance(spec, Clean) and not spec.draws


def _measure(
    inputs: Inputs,
    title: str,
    specs: Sequence[Spec],
    outcomes: list[Outcomes],
    save: ImageFiles | None,
    checked: bool,
) -> dict[str, Any] | None:
    """Complete the outcomes; return the checks of the model where it is `checked`."""
    # A missing file is reported before torch is imported.
    resolve.checkpoint_of(inputs.record, inputs.run)
    evaluation = tile_calls.RecordEvaluation(inputs, title, specs, randomness.found(inputs))
    if save is None:
        return tile_calls.measure(evaluation, outcomes, checked=checked)
    claims = {spec: _claim(spec, inputs) for spec in save.names}
    shape = (inputs.n, *inputs.data.about.shape)
    to_files = partial(saving, save, inputs.data.load().labels, shape, claims)
    checks = tile_calls.measure(evaluation, outcomes, checked=checked, saving=to_files)
    inputs.run.report.notify(save.written())
    return checks


def _claim(spec: Spec, inputs: Inputs) -> dict[str, Any]:
    """What the file of saved images of a spec claims, without the value and the number of images."""
    entry = {"metric": spec.name(), **spec.settings(), **_common(spec, inputs)}
    (named,) = _renamed([_named_entry(entry, inputs)], inputs.run)
    return {**named, "checkpoint": inputs.checkpoint, "data": inputs.data.fingerprint}


def _cost(outcomes: Outcomes, examples: int) -> dict[str, Any]:
    """The cost fields of an entry: seconds, and passes through the model per image."""
    totals = outcomes.totals
    cost: Entry = {"seconds": round(totals.get("seconds", 0.0), 3)}
    if "forward" in totals and examples:
        cost["passes"] = {name: round(totals[name] / examples, 2) for name in ("forward", "backward")}
    return cost
