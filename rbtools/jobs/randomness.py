"""Randomised models of records, and those that adapt: what was found of one, and the verdicts for it.

A user's model is run on the same images twice, once: the store keeps what was found.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from rbtools.evaluation.adapting import adapting
from rbtools.evaluation.base import EvalTask, default_chunk_size
from rbtools.evaluation.by_draws import (
    IMAGES,
    LOOKED,
    Pilot,
    Randomness,
    TaskByDraws,
    batch_of_look,
    by_draws,
)
from rbtools.execution import device
from rbtools.inputs.resolve import Inputs
from rbtools.models import RUNS_CODE
from rbtools.records import dumps
from rbtools.store import digest

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Result = TypeVar("Result")
# The last record's inputs, and what was found: without a store its model would be run several times.
_last: list[tuple[Inputs, Randomness]] = []


def found(inputs: Inputs) -> Randomness:
    """What is random in the record's model. Networks that rb-train made of ours have nothing random.

    Raises RbError for a model whose result for an image depends on other images, unless it is declared to
    adapt, and for any other that is.
    """
    record = inputs.record
    own = "checkpoint_file" in record or record["arch"].get("space") in RUNS_CODE
    known = not own and inputs.run.selection.defend is None
    look = Randomness() if known else _found(inputs)
    if inputs.run.plan is not None and not look.adapts:
        return look  # a dry run may not know it
    return look.checked(inputs.run.settings.adapts)


def _found(inputs: Inputs) -> Randomness:
    if _last and _last[0][0] is inputs:
        return _last[0][1]
    key = f"randomness:{digest({'version': LOOKED, **inputs.fields})}"
    stored = inputs.run.store.get(key)
    if stored is None and inputs.run.plan is not None:
        return Randomness()
    if stored is None:
        stored = dumps(_looked(inputs)._asdict()).decode()
        inputs.run.store.put(key, stored)
    _last[:] = [(inputs, Randomness(**orjson.loads(stored)))]
    return _last[0][1]


def pilot(inputs: Inputs) -> Pilot:
    """The draws that a gradient of the record's randomised model needs, from the store or found now."""
    run = inputs.run
    key = f"pilot:{digest({'version': LOOKED, **inputs.fields, 'eot_max': run.settings.eot_max})}"
    stored = run.store.get(key)
    if stored is None:
        stored = dumps(_piloted(inputs)._asdict()).decode()
        run.store.put(key, stored)
    return Pilot(**orjson.loads(stored))


def judged(inputs: Inputs, task: EvalTask) -> EvalTask:
    """The task, with verdicts by rates where the model is randomised, and of whole batches where it adapts.

    Raises RbError for a task that has no such verdict, and as `found` does.
    """
    look, settings = found(inputs), inputs.run.settings
    if settings.adapts is not None:
        return adapting(task, settings.adapts, settings.batch)
    if not look.randomised or settings.draws == 1:
        return task
    changed = by_draws(task, settings.draws, partial(pilot, inputs))
    if isinstance(changed, TaskByDraws):  # of rb-pr each noisy copy has a pass of its own
        tell(inputs, changed.eot)
    return changed


def tell(inputs: Inputs, eot: int | None) -> None:
    """Say what a randomised model is judged by. eot: the draws of an attack's gradients."""
    arch, draws = inputs.record["arch"], inputs.run.settings.draws
    inputs.run.report.notify(f"{arch.get('name') or arch.get('str')} {found(inputs).sentence(draws, eot)}")


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

    return _of_first_images(inputs, lambda model, images, labels: look(model, images), whole=True)


def _piloted(inputs: Inputs) -> Pilot:
    """What gradients at the first images find."""
    from rbtools.evaluation import randomised

    look, settings = found(inputs), inputs.run.settings

    def of(model: nn.Module, images: Tensor, labels: Tensor) -> Pilot:
        chunk = settings.batch or default_chunk_size(images.device, images.shape[1:])
        return randomised.pilot(randomised.controlled(model, look), images, labels, settings.eot_max, chunk)

    return _of_first_images(inputs, of)


def _of_first_images(
    inputs: Inputs, find: Callable[[nn.Module, Tensor, Tensor], Result], *, whole: bool = False
) -> Result:
    """What is found of the network, the first images and their labels, with `whole` as many as a batch has;
    of fewer where memory runs out."""
    dataset = inputs.data.load()
    most = batch_of_look(dataset.images, inputs.data.size) if whole else IMAGES
    with device.taken(inputs.run, inputs.threads()) as place:
        model = inputs.load_model(place)

        def with_images(count: int) -> Result:
            ids = inputs.data.order(dataset.labels)[:count]
            return find(model, dataset.images[ids].to(place).float().div(255), dataset.labels[ids].to(place))

        try:
            return with_images(most)
        except RuntimeError as error:
            if not device.out_of_memory(error):
                raise
            return with_images(2)
