"""Randomised models of records, and those that adapt: what was found of one, and the verdicts for it.

A user's model is run on the same images twice, once: the store keeps what was found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from rbtools.evaluation.adapting import adapting
from rbtools.evaluation.base import EvalTask, default_chunk_size
from rbtools.evaluation.by_draws import IMAGES, Randomness, by_draws
from rbtools.execution import device
from rbtools.inputs.resolve import Inputs
from rbtools.records import dumps
from rbtools.store import digest

if TYPE_CHECKING:
    import torch
    from torch import nn

VERSION = 1
# The last record's inputs, and what was found: without a store its model would be run several times.
_last: list[tuple[Inputs, Randomness]] = []


def found(inputs: Inputs) -> Randomness:
    """What is random in the record's model. Networks that rb-train made have nothing random.

    Raises RbError for a model whose result for an image depends on other images, unless it is declared to
    adapt, and for any other that is.
    """
    known = "checkpoint_file" not in inputs.record and inputs.run.selection.defend is None
    look = Randomness() if known else _found(inputs)
    if inputs.run.plan is not None and not look.adapts:
        return look  # a dry run may not know it
    return look.checked(inputs.run.settings.adapts)


def _found(inputs: Inputs) -> Randomness:
    if _last and _last[0][0] is inputs:
        return _last[0][1]
    run = inputs.run
    key = f"randomness:{digest({'version': VERSION, **inputs.fields, 'eot_max': run.settings.eot_max})}"
    stored = run.store.get(key)
    if stored is None and run.plan is not None:
        return Randomness()
    if stored is None:
        stored = dumps(_looked(inputs)._asdict()).decode()
        run.store.put(key, stored)
    _last[:] = [(inputs, Randomness(**orjson.loads(stored)))]
    return _last[0][1]


def judged(inputs: Inputs, task: EvalTask) -> EvalTask:
    """The task, with verdicts by rates where the model is randomised, and of whole batches where it adapts.

    Raises RbError for a task that has no such verdict, and as `found` does.
    """
    look, settings = found(inputs), inputs.run.settings
    if settings.adapts is not None:
        return adapting(task, settings.adapts, settings.batch)
    draws = settings.draws
    if not look.randomised or draws == 1:
        return task
    changed = by_draws(task, draws, look)
    if changed is not task:  # rb-pr: each noisy copy has a pass of its own
        inputs.run.report.notify(sentence(inputs, task))
    return changed


def sentence(inputs: Inputs, task: EvalTask) -> str:
    """What a randomised model is judged by."""
    arch = inputs.record["arch"]
    return f"{arch.get('name') or arch.get('str')} {found(inputs).sentence(inputs.run.settings.draws, task)}"


def marked(record: dict[str, Any], inputs: Inputs) -> dict[str, Any]:
    """The record, with `randomised` where its model is."""
    return {**record, "randomised": True} if found(inputs).randomised else record


def load(inputs: Inputs, place: torch.device) -> nn.Module:
    """The network on the device, with random numbers that belong to the example, and, where it adapts, with
    passes that start from the same state."""
    from rbtools.evaluation.randomised import AdaptingModel, controlled

    if inputs.run.settings.adapts is not None:
        return AdaptingModel(inputs.load_model(place))
    return controlled(inputs.load_model(place), found(inputs))


def _looked(inputs: Inputs) -> Randomness:
    """What passes of the first images find."""
    from rbtools.evaluation.randomised import look

    dataset, settings = inputs.data.load(), inputs.run.settings
    with device.taken(inputs.run, inputs.threads()) as place:
        model = inputs.load_model(place)
        chunk = settings.batch or default_chunk_size(place, inputs.data.about.shape)

        def with_images(count: int) -> Randomness:
            ids = inputs.data.order(dataset.labels)[:count]
            images = dataset.images[ids].to(place).float().div(255)
            return look(model, images, dataset.labels[ids].to(place), settings.eot_max, chunk)

        try:
            return with_images(IMAGES)
        except RuntimeError as error:
            if not device.out_of_memory(error):
                raise
            return with_images(2)
