"""The evaluations of the suite, one function a tool: a record in, the record with results out.

An evaluation asks a `Question`: a few `Column`s of outcomes, one whole number per example (is it
still classified right; how many of its noisy copies are). Outcomes are kept in the store under a
key that does not contain `n`, in one fixed order of the examples, so that more examples, a later
epsilon, or an interrupted run go on from what is there. (Attacks that draw for a tile as a whole are
the exception: for them another `n` is other work.)
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools.engine import GENERATOR, checkpoints, precision, sanity, subject
from rbtools.engine.questions import Clean, Column, Question
from rbtools.engine.run import Run
from rbtools.errors import RbError
from rbtools.records import metrics, results
from rbtools.spaces.identity import identity
from rbtools.store import digest

if TYPE_CHECKING:
    import numpy as np

    from rbtools.engine.outcomes import Outcomes

VERSION = 2  # of the outcomes
READING = 1  # of what entries make of them
UNPREPARED = "The search ran on the network as it is, in float32: it could not be prepared for searches."


def ask(record: dict[str, Any], question: Question, run: Run) -> dict[str, Any]:
    """Answer the question for this record's model and put the answers into the record.

    Raises RbError where the model or the data cannot be had, or an answer of that name is there
    with another protocol.
    """
    record = checkpoints.prepared(record, run)
    check(record, expected(record, question, run), run)
    record, entries, byproducts = answered(record, question, run)
    for entry in byproducts:
        record = results.add_byproduct(record, entry)
    return put(record, entries, run)


def answered(
    record: dict[str, Any], question: Question, run: Run
) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """The prepared record with its data, and the entries that answer: (asked for, byproducts)."""
    entries, byproducts = answers(record, question, run)
    sanity.tell(record, [*entries, *byproducts], run)
    for entry in entries:
        for warning in entry.get("warnings", ()):
            if warning == UNPREPARED:
                continue  # said once, with the reason, where the search was made
            run.remark(f"{entry['metric']}: {warning}")
    return subject.with_data(record, run), entries, byproducts


def put(record: dict[str, Any], entries: Sequence[dict[str, Any]], run: Run) -> dict[str, Any]:
    """Add entries under their names, or under `--as NAME`. Raises RbError as `check` does."""
    for entry in _named(entries, run):
        record = results.add(record, entry, replace=run.replace)
    return record


def check(record: dict[str, Any], entries: Sequence[dict[str, Any]], run: Run) -> None:
    """Raise RbError before the work where `put` would raise it after: `entries` are those `expected`."""
    if (other := results.edited(record)) is not None:
        run.remark(
            f"warning: {other['metric']} of a record is not what its own entry in evals says. Where it is"
            " measured again, that replaces it."
        )
    for entry in _named(entries, run):
        if not run.replace:
            results.refuse(record, entry)


def _named(entries: Sequence[dict[str, Any]], run: Run) -> Sequence[dict[str, Any]]:
    if run.name_as is None:
        return entries
    if len(entries) != 1:
        more = f" and {len(entries) - 4} others" if len(entries) > 4 else ""
        names = ", ".join(entry["metric"] for entry in entries[:4]) + more
        raise RbError(
            f"--as names one result, but this run gives {len(entries)}: {names}. Ask for one of them alone."
        )
    return [{**entries[0], "metric": run.name_as}]


def expected(
    record: dict[str, Any], question: Question, run: Run, split: str | None = None
) -> list[dict[str, Any]]:
    """The entries that will answer the question, as far as they are known before the work: without findings.

    What only the work tells of a protocol is results.LATER: the number of images that are right, a loss that
    may have to stand in for another, whether the model takes to being prepared.
    """
    with run.clock.stage("data"):
        data = subject.data_of(record, run, split)
    n = data.size if run.n is None else min(run.n, data.size)
    nothing = {"value": 0.0, "ci95": (0.0, 1.0), "seconds": 0.0}
    found = []
    for column in question.columns():
        how = _arithmetic(column, run)["precision"]
        common = {"precision": how if how == "fp32" else results.LATER, **_common(column, data, run)}
        for entry in column.asked() if not column.byproduct else ():
            number = results.LATER if entry.get("denominator") == "correct" else n
            loss = {"loss": results.LATER} if "loss" in entry else {}
            found.append({**entry, "n": number, **nothing, **loss, **common})
    if hasattr(question, "summary"):
        found += question.summary(found, [], {})
    return [_shown(entry, record, data, run) for entry in found]


def _common(column: Column, data: subject.Data, run: Run) -> dict[str, Any]:
    """What each entry of a column says of its examples and its random numbers."""
    chance = {"seed": run.seed, "draws": GENERATOR} if column.random else {}
    return {"split": data.split, **data.protocol(), **chance}


def answers(
    record: dict[str, Any], question: Question, run: Run, split: str | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The entries of a question on one split, from the store or computed: (asked for, byproducts)."""
    with run.clock.stage("data"):
        data = subject.data_of(record, run, split)
    n = data.size if run.n is None else min(run.n, data.size)
    units = _units(record, question, data, n, run)

    def look() -> list[Any]:
        return [run.store.result(unit.key) for unit in units]

    finished = look()
    save = _to_save(question, units, record)
    if save:
        finished = [None] * len(units)  # images are not kept: they have to be made again
    if None in finished:
        missing = [unit.outcomes for unit, found in zip(units, finished, strict=True) if found is None]
        if run.plan is not None:
            run.plan.evaluation(question.title, record, _lacking(units, finished, n, run))
        done = (lambda: False) if save else (lambda: None not in look())
        with run.store.claimed(missing, done, run.pulse) as ours:
            finished = [None] * len(units) if save else look()
            if ours:
                _compute(record, question, units, finished, data, n, run, save)
        run.store.computed += ours
        run.store.found += not ours
    else:
        run.store.found += 1
    asked: list[dict[str, Any]] = []
    byproducts: list[dict[str, Any]] = []
    for unit, found in zip(units, finished, strict=True):
        (byproducts if unit.column.byproduct else asked).extend(found or [])
    if hasattr(question, "summary"):
        asked += question.summary(asked, byproducts, _right(units, n, run))
    asked, byproducts = ([_shown(one, record, data, run) for one in part] for part in (asked, byproducts))
    return asked, byproducts


def right(record: dict[str, Any], question: Question, run: Run) -> dict[tuple[str, int], np.ndarray]:
    """Which images are right under each corruption and severity of a question that was answered: 1 or 0.

    What the store has not kept is lacking.
    """
    data = subject.data_of(record, run)
    n = data.size if run.n is None else min(run.n, data.size)
    return _right(_units(record, question, data, n, run), n, run)


def _right(units: Sequence[_Unit], n: int, run: Run) -> dict[tuple[str, int], np.ndarray]:
    from rbtools.engine.outcomes import Outcomes

    asked = [(unit, unit.column.asked()[0]) for unit in units if not unit.column.byproduct]
    return {
        (entry["corruption"], entry["severity"]): Outcomes(run.store, unit.outcomes).values(n)
        for unit, entry in asked
    }


def _units(record: dict[str, Any], question: Question, data: subject.Data, n: int, run: Run) -> list[_Unit]:
    checkpoint = subject.checkpoint_name(record, run)
    return [_unit(record, checkpoint, column, data, n, run) for column in question.columns()]


def _lacking(
    units: Sequence[_Unit], finished: Sequence[Any], n: int, run: Run
) -> list[tuple[str, dict[str, Any], int]]:
    """Of each unit without entries its outcomes' key, its column, and how many images are not done."""
    from rbtools.engine.outcomes import Outcomes

    lacking = [unit for unit, found in zip(units, finished, strict=True) if found is None]
    left = [n - min(len(Outcomes(run.store, unit.outcomes)), n) for unit in lacking]
    return [(unit.outcomes, unit.what["column"], images) for unit, images in zip(lacking, left, strict=True)]


def _shown(entry: dict[str, Any], record: dict[str, Any], data: subject.Data, run: Run) -> Any:
    """An entry as it stands in the record: named for its split, with the tool that asked."""
    name = metrics.split_name(entry["metric"], data.split)
    shown = {"tool": run.tool, **entry, "metric": name}
    if subject.named_data(record, data.name) != data.name:
        shown["dataset"] = data.name
    return shown


class _Unit(NamedTuple):
    """A column and where its outcomes and its entries are kept: what determines them, and its digest."""

    column: Column
    what: dict[str, Any]
    outcomes: str
    reading: dict[str, Any]
    key: str


def _unit(
    record: dict[str, Any], checkpoint: str, column: Column, data: subject.Data, n: int, run: Run
) -> _Unit:
    what = {
        "kind": "outcomes",
        "version": VERSION,
        "checkpoint": checkpoint,
        "arch": identity(record["arch"]),
        "data": data.fingerprint,
        "split": data.split,
        **_arithmetic(column, run),
        "column": column.what(),
    }
    if column.random:
        what |= {"seed": run.seed, "draws": GENERATOR}
    if column.whole_tiles:
        what["n"] = n  # it ends the last tile, and what such an attack draws belongs to the whole tile
    outcomes = digest(what)
    reading = {"outcomes": outcomes, "n": n, "version": READING, **column.reading()}
    return _Unit(column, what, outcomes, reading, digest(reading))


def _arithmetic(column: Column, run: Run) -> dict[str, Any]:
    """How the column's outcomes are computed, as far as that could change one."""
    if not (run.prepare and column.searches):
        return {"precision": "fp32"}
    how = {"precision": precision.resolve(run), "prepared": precision.PREPARED}
    return how | ({"compiled": True} if run.compile else {})


def _compute(
    record: dict[str, Any],
    question: Question,
    units: Sequence[_Unit],
    finished: list[Any],
    data: subject.Data,
    n: int,
    run: Run,
    save: _Files | None,
) -> None:
    """Put what the store does not have into `finished`; keep outcomes as they come, and the entries.

    With `save` the images are wanted too, and all is made anew.
    """
    from rbtools.engine.outcomes import Outcomes

    missing = [i for i, found in enumerate(finished) if found is None]
    if any(units[i].column.leans for i in missing):
        missing = list(range(len(units)))  # it is made from outcomes of the others
    outcomes = [Outcomes(run.store, units[i].outcomes, anew=bool(save)) for i in missing]
    looked = None
    if any(len(one) < n for one in outcomes):
        subject.checkpoint_of(record, run)  # where it is not to be had, that need not wait for torch
        from rbtools.engine import device, placing, tiles

        with device.taken(run, placing.threads_for(run, record["arch"])) as chosen:
            with run.clock.stage("model"):
                model = subject.load_model(record, data, run, chosen)
            wanted = [units[i].column for i in missing]
            if any(isinstance(column, Clean) for column in wanted):
                with run.clock.stage("look"):
                    looked = sanity.look(model, record, data, n, chosen, run)
            with contextlib.ExitStack() as files:
                take = None
                if save:
                    from rbtools.engine.saving import saver

                    take = files.enter_context(saver(save.folder, save.names, data.load(), n)).add
                with run.clock.stage(question.title):
                    tiles.fill(model, data, question, wanted, outcomes, n, chosen, run, take)
            if save:
                made = ", ".join(f"{name}.npz" for name in save.names.values())
                run.remark(f"The adversarial images are in {save.folder}: {made}.")
    names = subject.names(record, data)
    for i, one in zip(missing, outcomes, strict=True):
        column, what, _, reading, key = units[i]
        common = _common(column, data, run)
        cost = {"device": "+".join(one.devices), **_arithmetic(column, run)}
        unprepared = []
        if one.prepared:
            cost["prepared"] = one.prepared
        elif cost.pop("prepared", None) is not None:
            cost["precision"] = "fp32"  # the model did not take to being prepared
            unprepared = [UNPREPARED]
        seen = {} if looked is None or not isinstance(column, Clean) else {"sanity": looked}
        told = {**_spent(one, len(one)), **seen}
        finished[i] = [
            _warned({**entry, **common, **told, **cost}, unprepared)
            for entry in column.entries(one.values(n), one.totals)
        ]
        run.store.keep_result(key, reading, finished[i], {"kind": "evaluation", "of": what, **names})


def _warned(entry: dict[str, Any], more: list[str]) -> dict[str, Any]:
    """The entry with further warnings."""
    return {**entry, "warnings": [*entry.get("warnings", ()), *more]} if more else entry


class _Files(NamedTuple):
    """A folder, and for some columns the names of files in it, without ending."""

    folder: str
    names: dict[Any, str]


def _to_save(question: Any, units: Sequence[_Unit], record: dict[str, Any]) -> _Files | None:
    """The files for adversarial images, where they are asked for and not all there yet.

    A name tells people the model and the metric, and by the key of the result that nothing else is in it.
    """
    folder = getattr(question, "save", None)
    if folder is None:
        return None
    names: dict[Any, str] = {}
    for unit in units:
        column: Any = unit.column
        if not column.byproduct:
            arch = re.sub(r"[^\w.-]+", "-", str(record["arch"].get("name", "model")))[:60]
            names[column] = f"{arch}-{column.metric}-{unit.key[:12]}"
    there = all(os.path.exists(os.path.join(folder, f"{name}.npz")) for name in names.values())
    return None if there else _Files(folder, names)


def _spent(outcomes: Outcomes, examples: int) -> dict[str, Any]:
    """What an entry says of the cost of its outcomes: seconds, and passes through the model per image."""
    totals = outcomes.totals
    found: dict[str, Any] = {"seconds": round(totals.get("seconds", 0.0), 3)}
    if "forward" in totals and examples:
        found["passes"] = {name: round(totals[name] / examples, 2) for name in ("forward", "backward")}
    return found
