"""Evaluation of an `EvalTask` on a record: its results from the store or computed.

A task has a few `Output`s, each one whole number per example (whether it is still classified correctly; the
number of its correct noisy copies). Outcomes are stored under a key that does not contain `n`, in one fixed
order of the examples, so that more examples, another eps or an interrupted run continue from the stored
outcomes. (The key of attacks that draw random numbers for the whole batch does contain `n`.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from rbtools.errors import RbError
from rbtools.evaluation import model_checks
from rbtools.evaluation.base import VERSION, EvalTask, Outcomes, Output
from rbtools.evaluation.evaluate import together
from rbtools.evaluation.tasks import AccuracyTask, AttackOutput, CleanOutput, right
from rbtools.evaluation.tiles import missing_tiles
from rbtools.execution import precision, resources
from rbtools.execution.run import Run
from rbtools.inputs import resolve
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.inputs.data import named_data
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
NO_FAST_MODEL = "The search ran on the network as it is, in float32: it could not be prepared for searches."


def run_task(record: dict[str, Any], task: EvalTask, run: Run) -> dict[str, Any]:
    """The record with the results of the task.

    Raises RbError where the model or the data are not available, or the record has a result of that name
    with another protocol.
    """
    inputs = resolve_inputs(record, run)
    task = randomness.judged(inputs, task)
    if isinstance(task, AccuracyTask):
        task = replace(task, among=inputs.data.about.present)
    check_entries(inputs.record, expected_entries(inputs, task), run)
    record, entries, implicit_entries = measured_entries(inputs, task)
    for entry in implicit_entries:
        record = results.add_implicit(record, entry)
    report_grid(inputs, task)
    return add_entries(record, entries, run)


def report_grid(inputs: Inputs, task: EvalTask) -> None:
    """Print how much accuracy the grid of an attack gives back, where the store has the result without it."""
    for output in task.outputs():
        if not isinstance(output, AttackOutput) or output.method.grid == "none":
            continue
        real = replace(output, method=replace(output.method, grid="none"))
        values = [
            entries[0]["value"]
            for one in (output, real)
            if (entries := _stored_entries(inputs.run, _cache_unit(inputs, one).entries_key))
        ]
        if len(values) == 2:
            more = values[0] - values[1]
            side = f"{abs(more):.4f} {'below' if more < 0 else 'above'}"
            inputs.run.report.notify(
                f"{output.metric} on 8-bit images: {values[0]:.4f}, {side} the one on real-valued images."
            )


def measured_entries(inputs: Inputs, task: EvalTask) -> tuple[dict[str, Any], Entries, Entries]:
    """The record with its data, and the entries of the task: (requested, implicit). Prints their warnings."""
    entries, implicit_entries = task_entries(inputs, task)
    model_checks.report_checks(inputs.record, [*entries, *implicit_entries], inputs.run)
    report_warnings(entries, inputs.run)
    record = randomness.marked(inputs.record_with_data(), inputs)
    record = with_classes(record, inputs, [*entries, *implicit_entries])
    return record, entries, implicit_entries


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


def expected_entries(inputs: Inputs, task: EvalTask) -> Entries:
    """The entries of the task as far as they are known before the computation: without results.

    Fields that only the computation determines are results.LATER: the number of correct images, a loss that
    may replace another, whether the attack can run on the fast model.
    """
    nothing = {"value": 0.0, "ci95": (0.0, 1.0), "seconds": 0.0}
    entries = []
    for output in task.outputs():
        precise = _arithmetic(output, inputs.run)["precision"] == "fp32"
        common = {"precision": "fp32" if precise else results.LATER, **_common(output, inputs)}
        for entry in output.entry_template() if not output.implicit else ():
            number = results.LATER if entry.get("denominator") == "correct" else inputs.n
            loss = {"loss": results.LATER} if "loss" in entry else {}
            entries.append({**entry, "n": number, **nothing, **loss, **common})
    entries += task.summarize(entries, [], dict)
    return [_named_entry(entry, inputs) for entry in entries]


def _common(output: Output, inputs: Inputs) -> Entry:
    """The fields of an output's entries that describe its examples and its random numbers."""
    seed = seed_fields(inputs.run.settings.seed) if output.random else {}
    return {
        "split": inputs.data.split,
        **inputs.data.protocol(),
        **_stages_fields(output, inputs.run),
        **seed,
    }


def _stages_fields(output: Output, run: Run) -> Entry:
    """The fields that name the stages in front of the network and, if the attack went through them, how their
    gradients were taken."""
    stages = run.selection.defend
    if stages is None:
        return {}
    (template, *_) = output.entry_template()
    by_gradient = template.get("attack") not in (None, "square", "noise")
    through = by_gradient and not metric_name.of_other_network(template["metric"])
    return {"defend": stages.text, **({"backward": stages.backwards} if through else {})}


def task_entries(inputs: Inputs, task: EvalTask) -> tuple[Entries, Entries]:
    """The entries of a task on the split, from the store or computed: (requested, implicit)."""
    run = inputs.run
    units = _cache_units(inputs, task)
    save = None
    if task.save is not None:
        keys = {unit.output: unit.entries_key for unit in units if not unit.output.implicit}
        save = files_to_save(task.save, keys, inputs.record["arch"], task.png)
    computed = [None if save else _stored_entries(run, unit.entries_key) for unit in units]
    if None not in computed:
        run.store.found += 1
    else:
        _compute(inputs, task, units, computed, save)
        run.store.computed += 1
    requested: Entries = []
    implicit_entries: Entries = []
    for unit, entries in zip(units, computed, strict=True):
        shown = [_without_large_detail(entry, unit.entries_key, run) for entry in entries or ()]
        (implicit_entries if unit.output.implicit else requested).extend(shown)
    requested += task.summarize(requested, implicit_entries, partial(_correct, units, inputs))
    return tuple([_named_entry(entry, inputs) for entry in part] for part in (requested, implicit_entries))  # type: ignore[return-value]


def correct_images(inputs: Inputs, task: EvalTask) -> dict[tuple[str, int], np.ndarray]:
    """1 or 0 for each image, whether it is classified correctly, for each corruption and severity of a
    finished task. Outcomes that the store lacks are left out.
    """
    return _correct(_cache_units(inputs, task), inputs)


def stored_outcomes(inputs: Inputs, task: EvalTask) -> dict[Output, np.ndarray]:
    """The outcomes (n,) or rows (n, R) of each requested output of a task that was measured.

    They come in the order of the evaluation. Those that the store has lost are computed again.
    """
    units = [unit for unit in _cache_units(inputs, task) if not unit.output.implicit]
    if any(len(Outcomes(inputs.run.store, unit.outcomes_key)) < inputs.n for unit in units):
        _compute(inputs, task, units, [None for _ in units], None)
    return {unit.output: Outcomes(inputs.run.store, unit.outcomes_key).values(inputs.n) for unit in units}


def outcome_fields(inputs: Inputs, output: Output) -> dict[str, Any]:
    """The fields that determine the outcomes of an output, whose digest is their key in the store."""
    return _cache_unit(inputs, output).outcomes_fields


def inputs_fields(inputs: Inputs) -> dict[str, Any]:
    """Those of these fields that name the model, the data and the version of the outcomes."""
    return {"version": VERSION, **inputs.fields}


def known_outcomes(inputs: Inputs, task: EvalTask) -> list[np.ndarray]:
    """The outcomes (n,) or rows (n, R) of the requested outputs that the store has; nothing is computed."""
    units = [unit for unit in _cache_units(inputs, task) if not unit.output.implicit]
    stored = [Outcomes(inputs.run.store, unit.outcomes_key) for unit in units]
    return [outcomes.values(inputs.n) for outcomes in stored if len(outcomes) >= inputs.n]


def _correct(units: Sequence[_CacheUnit], inputs: Inputs) -> dict[tuple[str, int], np.ndarray]:
    templates = [(unit, unit.output.entry_template()[0]) for unit in units if not unit.output.implicit]
    return {
        (entry["corruption"], entry["severity"]): right(
            Outcomes(inputs.run.store, unit.outcomes_key).values(inputs.n), unit.output.detail
        )
        for unit, entry in templates
    }


def _cache_units(inputs: Inputs, task: EvalTask) -> list[_CacheUnit]:
    return [_cache_unit(inputs, output) for output in task.outputs()]


def _stored_entries(run: Run, key: str) -> Entries | None:
    """The entries that the store has, or None; a store of other people may contain anything under the key."""
    kept = run.store.result(key)
    is_whole = isinstance(kept, list) and all(
        isinstance(entry, dict) and isinstance(entry.get("metric"), str) and "value" in entry
        for entry in kept
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


def _with_answers(entry: Entry, output: Output, outcomes: np.ndarray, fields: Mapping[str, Any]) -> Entry:
    """The entry with a bit for each image, where its value is a share of images and they are not too many.

    outcomes: of all images of the evaluation; fields: see `examples_digest`.
    """
    n = entry.get("n")
    if not n or len(outcomes) > answers.MOST or not metric_name.is_share(entry["metric"]):
        return entry
    counted = output.counted(outcomes, entry)
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
    """An output with the store keys of its outcomes and entries: the determining fields and their digests."""

    output: Output
    outcomes_fields: dict[str, Any]
    outcomes_key: str
    entries_fields: dict[str, Any]
    entries_key: str


def _cache_unit(inputs: Inputs, output: Output) -> _CacheUnit:
    run = inputs.run
    of_outcomes = {
        "kind": "outcomes",
        **inputs_fields(inputs),
        **_arithmetic(output, run),
        "column": output.key_fields(),
    }
    if output.random:
        of_outcomes |= seed_fields(run.settings.seed)
    if output.batch_dependent:
        # n sets the size of the last batch, and the attack draws for whole batches.
        of_outcomes["n"] = inputs.n
    outcomes_key = digest(of_outcomes)
    of_entries = {
        "outcomes": outcomes_key,
        "n": inputs.n,
        "version": POSTPROCESSING,
        **output.postprocess_key(),
    }
    return _CacheUnit(output, of_outcomes, outcomes_key, of_entries, digest(of_entries))


def _arithmetic(output: Output, run: Run) -> dict[str, Any]:
    """The numerical settings of the output's computation that could change an outcome."""
    if not (run.settings.prepare and output.allow_fast_model):
        return {"precision": "fp32"}
    return {"precision": precision.resolve(run), "prepared": precision.PREPARED}


def _compute(
    inputs: Inputs,
    task: EvalTask,
    units: Sequence[_CacheUnit],
    computed: list[Any],
    save: ImageFiles | None,
) -> None:
    """Compute the entries that are None in `computed`, and store outcomes and entries.

    With `save` the perturbed images are needed too, and everything is computed again. Raises Pending in a dry
    run.
    """
    n, run = inputs.n, inputs.run
    missing = [i for i, entries in enumerate(computed) if entries is None]
    if any(units[i].output.needs_other_outputs for i in missing):
        missing = list(range(len(units)))
    outputs = [units[i].output for i in missing]
    outcomes = [Outcomes(run.store, units[i].outcomes_key, anew=bool(save)) for i in missing]
    if run.plan is not None:
        size = together(outputs, resources.kind(run), inputs.data.about.shape)
        keys = digest({"tiles of": [units[i].entries_key for i in missing]})
        run.plan.lacks(keys, task.title, len(missing_tiles(outcomes, n, size)))
    checked = any(isinstance(output, CleanOutput) for output in outputs)
    checks = None
    if any(len(stored) < n for stored in outcomes):
        checks = _measure(inputs, task, outputs, outcomes, save, checked)
    elif checked and "checkpoint_file" in inputs.record:
        # An earlier run of more images left the outcomes. The file may be gone since.
        with contextlib.suppress(RbError):
            checks = _measure(inputs, task, outputs, outcomes, save, checked)
    labels = resolve.names(inputs.record, inputs.data)
    for i, stored in zip(missing, outcomes, strict=True):
        unit = units[i]
        common = _common(unit.output, inputs)
        cost = {"device": "+".join(stored.devices), **_arithmetic(unit.output, run)}
        if len(stored.environments) == 1 and stored.environments[0]:
            cost["environment"] = stored.environments[0]
        warnings = []
        if stored.fast_steps:
            cost["prepared"] = stored.fast_steps
        elif cost.pop("prepared", None) is not None:
            cost["precision"] = "fp32"  # there was no fast copy of the model
            warnings = [NO_FAST_MODEL]
        sanity = {"sanity": checks} if checks is not None and isinstance(unit.output, CleanOutput) else {}
        computed[i] = []
        for entry in unit.output.entries(stored.values(n), stored.totals):
            entry = {**entry, **common, **_cost(stored, len(stored)), **sanity, **cost}
            more = {"warnings": [*entry.get("warnings", ()), *warnings]} if warnings else {}
            entry = _with_answers({**entry, **more}, unit.output, stored.values(n), unit.outcomes_fields)
            computed[i].append(entry)
        about = {"kind": "evaluation", "of": unit.outcomes_fields, **labels}
        run.store.keep_result(unit.entries_key, unit.entries_fields, computed[i], about)


def _measure(
    inputs: Inputs,
    task: EvalTask,
    outputs: Sequence[Output],
    outcomes: list[Outcomes],
    save: ImageFiles | None,
    checked: bool,
) -> dict[str, Any] | None:
    """Complete the outcomes; return the checks of the model where it is `checked`."""
    # A missing file is reported before torch is imported.
    resolve.checkpoint_of(inputs.record, inputs.run)
    evaluation = tile_calls.Evaluation(inputs, task, outputs, randomness.found(inputs))
    if save is None:
        return tile_calls.measure(evaluation, outcomes, checked=checked)
    claims = {output: _claim(output, inputs) for output in save.names}
    shape = (inputs.n, *inputs.data.about.shape)
    to_files = partial(saving, save, inputs.data.load().labels, shape, claims)
    checks = tile_calls.measure(evaluation, outcomes, checked=checked, saving=to_files)
    inputs.run.report.notify(save.written())
    return checks


def _claim(output: Output, inputs: Inputs) -> dict[str, Any]:
    """What the file of saved images of an output claims, without the value and the number of images."""
    entry = output.entry_template()[0]
    (named,) = _renamed([_named_entry({**entry, **_common(output, inputs)}, inputs)], inputs.run)
    return {**named, "checkpoint": inputs.checkpoint, "data": inputs.data.fingerprint}


def _cost(outcomes: Outcomes, examples: int) -> dict[str, Any]:
    """The cost fields of an entry: seconds, and passes through the model per image."""
    totals = outcomes.totals
    cost: Entry = {"seconds": round(totals.get("seconds", 0.0), 3)}
    if "forward" in totals and examples:
        cost["passes"] = {name: round(totals[name] / examples, 2) for name in ("forward", "backward")}
    return cost
