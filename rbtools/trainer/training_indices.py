"""The images of the train split that a model was trained on, if its training held some out."""

from __future__ import annotations

from typing import Any

from rbtools.datasets import indices
from rbtools.execution.run import Run
from rbtools.inputs.data import data_of, named_data
from rbtools.records import trained
from rbtools.store import digest
from rbtools.trainer import validation
from rbtools.trainer.recipe import Recipe, held_out


def trained_on(record: dict[str, Any], run: Run) -> indices.Indices | None:
    """The training images without those that `--val` held out; None if all were used, if nothing is known of
    the training, or if the run uses other data. Raises RbError for an invalid description of the training in
    the record.
    """
    share = trained.held_out_share(record)
    data = data_of(record, run, "train")
    if not share or named_data(record, data.name) != data.name:
        return None
    what = {"kind": "held-out images", "version": 1, "data": data.fingerprint, "val": share}
    key = digest(what)
    held = run.store.result(key)
    if held is None:
        labels = data.load().labels
        held = validation.split(labels, held_out(Recipe(val=share), len(labels)))[1].tolist()
        run.store.keep_result(key, what, held)
    left = set(held)
    return indices.of([number for number in range(data.size) if number not in left])
