"""The evaluations of the suite, one function a tool: a record in, the record with results out.

An evaluation asks a `Question`: a few `Column`s of outcomes, one whole number per example (is it
still classified right; how many of its noisy copies are). Outcomes are kept in the store under a
key that does not contain `n`, in one fixed order of the examples, so that more examples, a later
epsilon, or an interrupted run go on from what is there. (Attacks that draw for a batch as a whole are
the exception: for them another `n` is other work.)
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools.errors import RbError
from rbtools.evaluation import model_checks
from rbtools.evaluation.tasks import CleanOutput, EvalTask, Output
from rbtools.execution import precision
from rbtools.execution.context import RunContext
from rbtools.inputs import checkpoints, resolve
from rbtools.records import metric_name, results
from rbtools.rng import GENERATOR
from rbtools.spaces.identity import identity
from rbtools.store import digest

if TYPE_CHECKING:
    import numpy as np

    from rbtools.evaluation.outcomes import Outcomes

VERSION = 2  # of the outcomes
READING = 1  # of what entries make of them
UNPREPARED = "The search ran on the network as it is, in float32: it could not be prepared for searches."


def run_task(record: dict[str, Any], task: EvalTask, run: RunContext) -> dict[str, Any]:
    """Answer the question for this record's model and put the answers into the record.

    Raises RbError where the model or the data cannot be had, or an answer of that name is there
    with another protocol.
    """
    record = checkpoints.prepared(record, run)
    check_entries(record, expected_entries(record, task, run), run)
    record, entries, implicit_entries = measured_entries(record, task, run)
    for entry in implicit_entries:
        record = results.add_implicit(record, entry)
    return add_entries(record, entries, run)


def measured_entries(
    record: dict[str, Any], task: EvalTask, run: RunContext
) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """The prepared record with its data, and the entries that answer: (asked for, implicit)."""
    entries, implicit_entries = task_entries(record, task, run)
    model_checks.report_checks(record, [*entries, *implicit_entries], run)
    for entry in entries:
        for warning in entry.get("warnings", ()):
            if warning == UNPREPARED:
                continue  # said once, with the reason, where the search was made
            run.notify(f"{entry['metric']}: {warning}")
    return resolve.with_data(record, run), entries, implicit_entries


def add_entries(record: dict[str, Any], entries: Sequence[dict[str, Any]], run: RunContext) -> dict[str, Any]:
    """Add entries under their names, or under `--as NAME`. Raises RbError as `check` does."""
    for entry in _named(entries, run):
        record = results.add(record, entry, replace=run.replace)
    return record


def check_entries(record: dict[str, Any], entries: Sequence[dict[str, Any]], run: RunContext) -> None:
    """Raise RbError before the work where `put` would raise it after: `entries` are those `expected`."""
    if (other := results.edited(record)) is not None:
        run.notify(
            f"warning: {other['metric']} of a record is not what its own entry in evals says. Where it is"
            " measured again, that replaces it."
        )
    for entry in _named(entries, run):
        if not run.replace:
            results.refuse(record, entry)


def _named(entries: Sequence[dict[str, Any]], run: RunContext) -> Sequence[dict[str, Any]]:
    if run.name_as is None:
        return entries
    if len(entries) != 1:
        more = f" and {len(entries) - 4} others" if len(entries) > 4 else ""
        names = ", ".join(entry["metric"] for entry in entries[:4]) + more
        raise RbError(
            f"--as names one result, but this run gives {len(entries)}: {names}. Ask for one of them alone."
        )
    return [{**entries[0], "metric": run.name_as}]


def expected_entries(
    record: dict[str, Any], task: EvalTask, run: RunContext, split: str | None = None
) -> list[dict[str, Any]]:
    """The entries that will answer the question, as far as they are known before the work: without findings.

    What only the work tells of a protocol is results.LATER: the number of images that are right, a loss that
    may have to stand in for another, whether the model takes to being prepared.
    """
    with run.clock.stage("data"):
        data = resolve.data_of(record, run, split)
    n = data.size if run.n is None else min(run.n, data.size)
    nothing = {"value": 0.0, "ci95": (0.0, 1.0), "seconds": 0.0}
    found = []
    for output in task.outputs():
        how = _arithmetic(output, run)["precision"]
        common = {"precision": how if how == "fp32" else results.LATER, **_common(output, data, run)}
        for entry in output.entry_template() if not output.implicit else ():
            number = results.LATER if entry.get("denominator") == "correct" else n
            loss = {"loss": results.LATER} if "loss" in entry else {}
            found.append({**entry, "n": number, **nothing, **loss, **common})
    if hasattr(task, "summarize"):
        found += task.summarize(found, [], {})
    return [_named_entry(entry, record, data, run) for entry in found]


def _common(output: Output, data: resolve.Data, run: RunContext) -> dict[str, Any]:
    """What each entry of an output says of its examples and its random numbers."""
    chance = {"seed": run.seed, "draws": GENERATOR} if output.random else {}
    return {"split": data.split, **data.protocol(), **chance}


def task_entries(
    record: dict[str, Any], task: EvalTask, run: RunContext, split: str | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The entries of a question on one split, from the store or computed: (asked for, implicit)."""
    with run.clock.stage("data"):
        data = resolve.data_of(record, run, split)
    n = data.size if run.n is None else min(run.n, data.size)
    units = _cache_units(record, task, data, n, run)

    def look() -> list[Any]:
        return [run.store.result(unit.key) for unit in units]

    finished = look()
    save = _to_save(task, units, record)
    if save:
        finished = [None] * len(units)  # images are not kept: they have to be made again
    if None in finished:
        missing = [unit.outcomes for unit, found in zip(units, finished, strict=True) if found is None]
        if run.plan is not None:
            run.plan.evaluation(task.title, record, _lacking(units, finished, n, run))
        done = (lambda: False) if save else (lambda: None not in look())
        with run.store.claimed(missing, done, run.check_cancelled) as ours:
            finished = [None] * len(units) if save else look()
            if ours:
                _compute(record, task, units, finished, data, n, run, save)
        run.store.computed += ours
        run.store.found += not ours
    else:
        run.store.found += 1
    asked: list[dict[str, Any]] = []
    implicit_entries: list[dict[str, Any]] = []
    for unit, found in zip(units, finished, strict=True):
        (implicit_entries if unit.output.implicit else asked).extend(found or [])
    if hasattr(task, "summarize"):
        asked += task.summarize(asked, implicit_entries, _right(units, n, run))
    asked, implicit_entries = (
        [_named_entry(one, record, data, run) for one in part] for part in (asked, implicit_entries)
    )
    return asked, implicit_entries


def correct_images(
    record: dict[str, Any], task: EvalTask, run: RunContext
) -> dict[tuple[str, int], np.ndarray]:
    """Which images are right under each corruption and severity of a question that was answered: 1 or 0.

    What the store has not kept is lacking.
    """
    data = resolve.data_of(record, run)
    n = data.size if run.n is None else min(run.n, data.size)
    return _right(_cache_units(record, task, data, n, run), n, run)


def _right(units: Sequence[_CacheUnit], n: int, run: RunContext) -> dict[tuple[str, int], np.ndarray]:
    from rbtools.evaluation.outcomes import Outcomes

    asked = [(unit, unit.output.entry_template()[0]) for unit in units if not unit.output.implicit]
    return {
        (entry["corruption"], entry["severity"]): Outcomes(run.store, unit.outcomes).values(n)
        for unit, entry in asked
    }


def _cache_units(
    record: dict[str, Any], task: EvalTask, data: resolve.Data, n: int, run: RunContext
) -> list[_CacheUnit]:
    checkpoint = resolve.checkpoint_name(record, run)
    return [_cache_unit(record, checkpoint, output, data, n, run) for output in task.outputs()]


def _lacking(
    units: Sequence[_CacheUnit], finished: Sequence[Any], n: int, run: RunContext
) -> list[tuple[str, dict[str, Any], int]]:
    """Of each unit without entries its outcomes' key, its output, and how many images are not done."""
    from rbtools.evaluation.outcomes import Outcomes

    lacking = [unit for unit, found in zip(units, finished, strict=True) if found is None]
    left = [n - min(len(Outcomes(run.store, unit.outcomes)), n) for unit in lacking]
    return [(unit.outcomes, unit.what["column"], images) for unit, images in zip(lacking, left, strict=True)]


def _named_entry(entry: dict[str, Any], record: dict[str, Any], data: resolve.Data, run: RunContext) -> Any:
    """An entry as it stands in the record: named for its split, with the tool that asked."""
    name = metric_name.split_name(entry["metric"], data.split)
    shown = {"tool": run.tool, **entry, "metric": name}
    if resolve.named_data(record, data.name) != data.name:
        shown["dataset"] = data.name
    return shown


class _CacheUnit(NamedTuple):
    """An output and where its outcomes and its entries are kept: what determines them, and its digest."""

    output: Output
    what: dict[str, Any]
    outcomes: str
    reading: dict[str, Any]
    key: str


def _cache_unit(
    record: dict[str, Any], checkpoint: str, output: Output, data: resolve.Data, n: int, run: RunContext
) -> _CacheUnit:
    what = {
        "kind": "outcomes",
        "version": VERSION,
        "checkpoint": checkpoint,
        "arch": identity(record["arch"]),
        "data": data.fingerprint,
        "split": data.split,
        **_arithmetic(output, run),
        "column": output.key_fields(),
    }
    if output.random:
        what |= {"seed": run.seed, "draws": GENERATOR}
    if output.batch_dependent:
        what["n"] = n  # it ends the last batch, and what such an attack draws belongs to the whole batch
    outcomes = digest(what)
    reading = {"outcomes": outcomes, "n": n, "version": READING, **output.postprocess_key()}
    return _CacheUnit(output, what, outcomes, reading, digest(reading))


def _arithmetic(output: Output, run: RunContext) -> dict[str, Any]:
    """How the output's outcomes are computed, as far as that could change one."""
    if not (run.prepare and output.allow_fast_model):
        return {"precision": "fp32"}
    how = {"precision": precision.resolve(run), "prepared": precision.PREPARED}
    return how | ({"compiled": True} if run.compile else {})


def _compute(
    record: dict[str, Any],
    task: EvalTask,
    units: Sequence[_CacheUnit],
    finished: list[Any],
    data: resolve.Data,
    n: int,
    run: RunContext,
    save: _Files | None,
) -> None:
    """Put what the store does not have into `finished`; keep outcomes as they come, and the entries.

    With `save` the images are wanted too, and all is made anew.
    """
    from rbtools.evaluation.outcomes import Outcomes

    missing = [i for i, found in enumerate(finished) if found is None]
    if any(units[i].output.needs_other_outputs for i in missing):
        missing = list(range(len(units)))  # it is made from outcomes of the others
    outcomes = [Outcomes(run.store, units[i].outcomes, anew=bool(save)) for i in missing]
    looked = None
    if any(len(one) < n for one in outcomes):
        resolve.checkpoint_of(record, run)  # where it is not to be had, that need not wait for torch
        from rbtools.evaluation import batches
        from rbtools.execution import device, resources

        with device.taken(run, resources.threads_for(run, record["arch"])) as chosen:
            with run.clock.stage("model"):
                model = resolve.load_model(record, data, run, chosen)
            wanted = [units[i].output for i in missing]
            if any(isinstance(output, CleanOutput) for output in wanted):
                with run.clock.stage("look"):
                    looked = model_checks.check_outputs(model, record, data, n, chosen, run)
            with contextlib.ExitStack() as files:
                take = None
                if save:
                    from rbtools.evaluation.save_images import saver

                    take = files.enter_context(saver(save.folder, save.names, data.load(), n)).add
                with run.clock.stage(task.title):
                    batches.fill(model, data, task, wanted, outcomes, n, chosen, run, take)
            if save:
                made = ", ".join(f"{name}.npz" for name in save.names.values())
                run.notify(f"The adversarial images are in {save.folder}: {made}.")
    names = resolve.names(record, data)
    for i, one in zip(missing, outcomes, strict=True):
        output, what, _, reading, key = units[i]
        common = _common(output, data, run)
        cost = {"device": "+".join(one.devices), **_arithmetic(output, run)}
        unprepared = []
        if one.prepared:
            cost["prepared"] = one.prepared
        elif cost.pop("prepared", None) is not None:
            cost["precision"] = "fp32"  # the model did not take to being prepared
            unprepared = [UNPREPARED]
        seen = {} if looked is None or not isinstance(output, CleanOutput) else {"sanity": looked}
        told = {**_cost(one, len(one)), **seen}
        finished[i] = [
            _with_warnings({**entry, **common, **told, **cost}, unprepared)
            for entry in output.entries(one.values(n), one.totals)
        ]
        run.store.keep_result(key, reading, finished[i], {"kind": "evaluation", "of": what, **names})


def _with_warnings(entry: dict[str, Any], more: list[str]) -> dict[str, Any]:
    """The entry with further warnings."""
    return {**entry, "warnings": [*entry.get("warnings", ()), *more]} if more else entry


class _Files(NamedTuple):
    """A folder, and for some outputs the names of files in it, without ending."""

    folder: str
    names: dict[Any, str]


def _to_save(task: Any, units: Sequence[_CacheUnit], record: dict[str, Any]) -> _Files | None:
    """The files for adversarial images, where they are asked for and not all there yet.

    A name tells people the model and the metric, and by the key of the result that nothing else is in it.
    """
    folder = getattr(task, "save", None)
    if folder is None:
        return None
    names: dict[Any, str] = {}
    for unit in units:
        output: Any = unit.output
        if not output.implicit:
            arch = re.sub(r"[^\w.-]+", "-", str(record["arch"].get("name", "model")))[:60]
            names[output] = f"{arch}-{output.metric}-{unit.key[:12]}"
    there = all(os.path.exists(os.path.join(folder, f"{name}.npz")) for name in names.values())
    return None if there else _Files(folder, names)


def _cost(outcomes: Outcomes, examples: int) -> dict[str, Any]:
    """What an entry says of the cost of its outcomes: seconds, and passes through the model per image."""
    totals = outcomes.totals
    found: dict[str, Any] = {"seconds": round(totals.get("seconds", 0.0), 3)}
    if "forward" in totals and examples:
        found["passes"] = {name: round(totals[name] / examples, 2) for name in ("forward", "backward")}
    return found
