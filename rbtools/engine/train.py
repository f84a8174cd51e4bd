"""Training one record's architecture with a method: found in the store, or done epoch by epoch."""

from __future__ import annotations

import dataclasses
from typing import Any

from rbtools import registry, spaces
from rbtools.engine import GENERATOR, recipe, subject
from rbtools.engine.run import Run
from rbtools.records import results, trained
from rbtools.store import digest

VERSION = 1


def train(record: dict[str, Any], method: Any, how: recipe.Recipe, run: Run) -> dict[str, Any]:
    """Return the record with a trained checkpoint, its history and `seconds_per_epoch`.

    Results that belonged to former weights are dropped. Raises RbError where the recipe cannot
    work, the architecture cannot be built, or the loss stops being finite.
    """
    data = subject.data_of(record, run, "train")
    recipe.check(how, data.size)
    # What an architecture says of a file of weights goes with these.
    arch = {key: value for key, value in record["arch"].items() if key not in ("member", "normalize")}
    record = {**record, "arch": spaces.describe(arch, data.about.classes, data.about.shape)}
    if how.augment is None:
        how = dataclasses.replace(how, augment=data.about.augment)
    what = {
        "kind": "training",
        "version": VERSION,
        "arch": subject.identity(record["arch"]),
        "data": data.fingerprint,
        "normalize": [data.about.mean, data.about.std],  # by the data set's name, not by its content
        "method": {"name": method.name, "version": method.version, "config": registry.config(method)},
        "recipe": how.config(),
        "seed": run.seed,
        "draws": GENERATOR,
        "precision": "fp32",
    }
    key = digest(what)

    def look() -> Any:
        found = run.store.result(key)
        return found if found is not None and run.store.has_object(found["checkpoint"]) else None

    done = look()
    if done is None:
        with run.store.claimed([key], lambda: look() is not None, run.pulse) as ours:
            if ours:
                run.store.check_writable()
                done = _fit(record["arch"], data, method, how, run, key)
                run.store.keep_result(key, what, done, subject.names({"arch": record["arch"]}, data))
                run.store.drop_state(key)
            else:
                done = look()
        run.store.computed += ours
        run.store.found += not ours
    else:
        run.store.found += 1
    return _trained(record, data, what, done)


def _fit(
    arch: dict[str, Any], data: subject.Data, method: Any, how: recipe.Recipe, run: Run, key: str
) -> dict[str, Any]:
    from rbtools.engine import device, placing
    from rbtools.engine.loop import fit

    with device.taken(run, placing.training_threads(run, arch)) as chosen:
        return fit(arch, data, method, how, run, key, chosen)


def _trained(
    record: dict[str, Any], data: subject.Data, what: dict[str, Any], done: dict[str, Any]
) -> dict[str, Any]:
    record = results.forget_evaluations(record)
    of_former_file = ("checkpoint_file", "recognised")
    record = {key: value for key, value in record.items() if key not in of_former_file}
    training = {"train": trained.section(what, done), "checkpoint": done["checkpoint"]}
    record = {**record, **subject.of_data(data), **training}
    for entry in trained.entries(done):
        record = results.add(record, entry, replace=True)
    return record
