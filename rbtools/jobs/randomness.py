"""Randomised models of records: the test for randomness, and means over several passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from rbtools.evaluation import randomised
from rbtools.evaluation.randomised import LOOKED, Randomness
from rbtools.evaluation.spec import Evaluation
from rbtools.execution import device
from rbtools.execution.engine import Call
from rbtools.execution.run import Run
from rbtools.inputs.resolve import Inputs
from rbtools.lazy import torch
from rbtools.models import RUNS_CODE
from rbtools.records import dumps
from rbtools.store import digest

_NOTED = "randomness"


def found(inputs: Inputs) -> Randomness:
    """The randomness of the record's model. Networks that rb-train trained are not random. Raises RbError for
    a model whose result for one image depends on the other images."""
    record = inputs.record
    own = "checkpoint_file" in record or record["arch"].get("space") in RUNS_CODE
    known = not own and inputs.run.selection.defend is None
    return (Randomness() if known else _found(inputs)).checked()


def _found(inputs: Inputs) -> Randomness:
    if _NOTED in inputs.noted:
        return inputs.noted[_NOTED]
    key = f"randomness:{digest({'version': LOOKED, **inputs.fields})}"
    stored = inputs.run.store.get(key)
    if stored is None and inputs.run.plan is not None:
        return Randomness()
    if stored is None:
        stored = dumps(_looked(inputs)._asdict()).decode()
        inputs.run.store.put(key, stored)
    inputs.noted[_NOTED] = randomness = Randomness(**orjson.loads(stored))
    return randomness


def _looked(inputs: Inputs) -> Randomness:
    """Test the model for randomness, in a worker if there are workers, while the others import torch."""
    run, arch = inputs.run, inputs.record.get("arch")
    look = LookCall(arch, inputs)
    if run.pool is None:
        return look(run)
    reports = dict(run.pool.map([look, *[ReadyCall(arch)] * (run.pool.capacity - 1)]))
    return reports[0].value(run)


def draws_of(inputs: Inputs) -> int:
    """The number of passes over which verdicts are averaged; 0 for one pass. Raises RbError like `found`."""
    draws = inputs.run.settings.draws
    return draws if found(inputs).randomised and draws > 1 else 0


def judged(inputs: Inputs, evaluation: Evaluation, *, tell: bool) -> Evaluation:
    """The evaluation, with means over several passes if the model is randomised; with `tell`, this is
    reported. Raises RbError for an evaluation that has no such means, and in the cases of `found`."""
    changed, said = randomised.judged(evaluation, found(inputs), inputs.run.settings.draws)
    if tell and said is not None:
        arch = inputs.record["arch"]
        inputs.run.report.notify(f"{arch.get('name') or arch.get('str')} {said}")
    return changed


def marked(record: dict[str, Any], inputs: Inputs) -> dict[str, Any]:
    """The record, with the field `randomised` if its model is randomised."""
    return {**record, "randomised": True} if found(inputs).randomised else record


@dataclass(frozen=True)
class ReadyCall(Call):
    """Imports torch in a worker in advance, because the import takes seconds."""

    arch: Any

    def __call__(self, run: Run) -> None:
        torch.nn  # noqa: B018


@dataclass(frozen=True)
class LookCall(Call):
    """Tests the model for randomness on the first images, or on two images if memory runs out."""

    arch: Any
    inputs: Inputs

    def __call__(self, run: Run) -> Randomness:
        inputs = self.inputs
        dataset = inputs.data.load()
        most = randomised.batch_of_look(dataset.images, inputs.data.size)
        with device.taken(run, inputs.threads()) as place:
            model = inputs.load_model(place)

            def of_images(count: int) -> Randomness:
                ids = inputs.data.order(dataset.labels)[:count]
                return randomised.look(model, dataset.images[ids].to(place).float().div(255))

            try:
                return of_images(most)
            except RuntimeError as error:
                if not device.out_of_memory(error):
                    raise
                return of_images(2)
